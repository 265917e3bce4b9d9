//! `traceparent` and `tracestate` of W3C Trace Context. Pure: fields in, what goes to the app out.
//!
//! | what came | tracing is off | tracing is on |
//! | --- | --- | --- |
//! | a valid `traceparent` | untouched | the same trace, a span of ours as parent |
//! | a wrong one | dropped, a fresh one made | the same |
//! | none | none | a fresh one made |
//!
//! `tracestate` means something beside the `traceparent` that it came with only.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(crate) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The longest `tracestate` that is passed on: what every party has to keep, and no more.
const MAX_STATE: usize = 512;
/// The length of a `traceparent` of version 00, and of what is read of later versions.
const LENGTH: usize = 55;
/// The trace is recorded by who sent it.
const SAMPLED: u8 = 0x01;
/// What of the flags has a meaning: sampled, and an id that is random.
const KNOWN_FLAGS: u8 = 0x03;

/// Whether requests that come without a trace get one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tracing {
    /// What is valid passes, and nothing is added.
    #[default]
    Pass,
    /// Every request that goes to an app has a trace, and a span of ours is the app's parent.
    Always,
}

/// One place in one trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    trace: u128,
    span: u64,
    flags: u8,
}

impl Context {
    /// A fresh trace, recorded by us or not. When nobody here can tell it is marked as recorded: an
    /// app that follows its caller's word would else never record anything.
    pub(crate) fn fresh(ids: &Ids, record: Option<bool>) -> Self {
        let flags = if record == Some(false) { 0 } else { SAMPLED };
        let trace = (u128::from(ids.next()) << 64) | u128::from(ids.next());
        Self { trace: trace.max(1), span: ids.next().max(1), flags }
    }

    /// The same trace with a span of ours.
    pub(crate) fn child(self, ids: &Ids, record: Option<bool>) -> Self {
        let ours = if record == Some(true) { SAMPLED } else { 0 };
        Self { span: ids.next().max(1), flags: (self.flags & KNOWN_FLAGS) | ours, ..self }
    }

    /// The span's id.
    #[cfg(feature = "otel")]
    pub(crate) fn span(self) -> u64 {
        self.span
    }

    /// Somebody records this trace.
    #[cfg(feature = "otel")]
    pub(crate) fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Reads a `traceparent`.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let (head, rest) = text.split_at_checked(LENGTH)?;
        let [v0, v1, b'-', head @ ..] = head else { return None };
        let version = number(&[*v0, *v1])?;
        // A later version may have more, after another dash.
        let whole = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.is_empty() || rest[0] == b'-',
        };
        let (trace, head) = head.split_at_checked(32)?;
        let (dash_span, dash_flags) = head.split_at_checked(17)?;
        let (b"-", span) = dash_span.split_at_checked(1)? else { return None };
        let (b"-", flags) = dash_flags.split_at_checked(1)? else { return None };
        let trace = number(trace)?;
        let span = u64::try_from(number(span)?).ok()?;
        let flags = u8::try_from(number(flags)?).ok()?;
        (whole && trace != 0 && span != 0).then_some(Self { trace, span, flags })
    }

    /// The trace's id; written with 32 digits.
    pub(crate) fn id(self) -> u128 {
        self.trace
    }

    /// As a `traceparent` of version 00.
    fn header(&self) -> Option<HeaderValue> {
        let text = format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags);
        HeaderValue::try_from(text).ok()
    }
}

/// Lower-case hexadecimal, at most 32 digits.
fn number(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |n, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some((n << 4) | u128::from(digit))
    })
}

/// What a request's fields say of its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Nothing,
    Wrong,
    Valid(Context),
}

fn came(headers: &HeaderMap) -> Came {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let Some(first) = parents.next() else { return Came::Nothing };
    // Of two nobody can say which is right.
    match (Context::parse(first.as_bytes()), parents.next()) {
        (Some(context), None) => Came::Valid(context),
        _ => Came::Wrong,
    }
}

/// The trace that a request came with, if that is valid.
pub(crate) fn incoming(headers: &HeaderMap) -> Option<Context> {
    match came(headers) {
        Came::Valid(context) => Some(context),
        Came::Nothing | Came::Wrong => None,
    }
}

/// The trace of a request whose fields need no change.
pub(crate) fn untouched(headers: &HeaderMap, tracing: Tracing) -> Option<Context> {
    incoming(headers).filter(|_| tracing == Tracing::Pass && state_fits(headers))
}

/// Makes `headers` those that go to the app, and gives the trace that they tell of. `again` is what
/// this gave for an earlier try of the same request: it stays the same. `record` is whether this proxy
/// records it; none: it records nothing.
pub(crate) fn pass_on(
    headers: &mut HeaderMap,
    tracing: Tracing,
    ids: &Ids,
    again: Option<Context>,
    record: Option<bool>,
) -> Option<Context> {
    let came = came(headers);
    let kept = matches!(came, Came::Valid(_));
    if !kept || !state_fits(headers) {
        headers.remove(TRACESTATE);
    }
    let context = match (came, tracing) {
        (Came::Nothing, Tracing::Pass) => return None,
        (Came::Valid(context), Tracing::Pass) => return Some(context),
        (Came::Valid(context), Tracing::Always) => {
            again.unwrap_or_else(|| context.child(ids, record))
        }
        (Came::Nothing | Came::Wrong, _) => again.unwrap_or_else(|| Context::fresh(ids, record)),
    };
    if let Some(value) = context.header() {
        headers.insert(TRACEPARENT, value);
    }
    Some(context)
}

fn state_fits(headers: &HeaderMap) -> bool {
    let lengths = headers.get_all(TRACESTATE).iter().map(|value| value.len() + 1);
    // Several fields are one list, with commas between.
    lengths.sum::<usize>() <= MAX_STATE + 1
}

/// Numbers that do not come twice. They are no secret: a trace's id opens nothing.
pub(crate) struct Ids {
    seed: u64,
    next: AtomicU64,
}

impl Ids {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, next: AtomicU64::new(0) }
    }

    /// Those of this process.
    pub(crate) fn ours() -> &'static Self {
        static OURS: OnceLock<Ids> = OnceLock::new();
        OURS.get_or_init(|| Self::new(RandomState::new().hash_one(std::process::id())))
    }

    pub(crate) fn next(&self) -> u64 {
        // SplitMix64: every number once in 2^64.
        let n = self.next.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let mut z = self.seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True for this share of all calls.
    pub(crate) fn share(&self, share: f64) -> bool {
        // 53 bits fill a float's fraction: below 1, always.
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let n = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        share >= 1.0 || n < share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(fields: &[(HeaderName, &str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    fn text(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
        let values = headers.get_all(name).iter();
        values.map(|v| v.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn what_is_valid() {
        let rest = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
        for (text, valid) in [
            (GOOD.to_owned(), true),
            (format!("00-{rest}-00"), true),
            (format!("00-{rest}-ff"), true),
            // A later version is read as far as it is known.
            (format!("01-{rest}-01"), true),
            (format!("cc-{rest}-01-what-the-future-will-be-like"), true),
            (format!("cc-{rest}-01.what-the-future-will-be-like"), false),
            (format!("00-{rest}-01-what-the-future-will-be-like"), false),
            (format!("00-{rest}-01-"), false),
            (format!("ff-{rest}-01"), false),
            (format!("FF-{rest}-01"), false),
            (format!("0-{rest}-01"), false),
            (format!("0x-{rest}-01"), false),
            (format!("00-{rest}-1"), false),
            (format!("00-{rest}-.0"), false),
            (format!("00-{rest}"), false),
            (format!("00_{rest}-01"), false),
            ("00-00000000000000000000000000000000-00f067aa0ba902b7-01".to_owned(), false),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01".to_owned(), false),
            ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01".to_owned(), false),
            ("00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-011".to_owned(), false),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(Context::parse(text.as_bytes()).is_some(), valid, "{text}");
        }
        assert!(Context::parse(&[0xff; 55]).is_none());
        let context = Context::parse(GOOD.as_bytes()).unwrap();
        assert_eq!(context.header().unwrap(), GOOD);
        assert_eq!(format!("{:032x}", context.id()), TRACE);
    }

    #[test]
    fn a_valid_one_passes_untouched_when_tracing_is_off() {
        let future = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-09-x";
        for parent in [GOOD, future] {
            let mut fields = headers(&[(TRACEPARENT, parent), (TRACESTATE, "a=1,b=2")]);
            let before = fields.clone();
            let context = pass_on(&mut fields, Tracing::Pass, &Ids::new(1), None, None).unwrap();
            assert_eq!(untouched(&before, Tracing::Pass), Some(context));
            assert_eq!(untouched(&before, Tracing::Always), None);
            assert_eq!(format!("{:032x}", context.id()), TRACE);
            assert_eq!(fields, before);
        }
    }

    #[test]
    fn a_valid_one_gets_our_span_when_tracing_is_on() {
        let future = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-f9-x";
        let mut fields = headers(&[(TRACEPARENT, future), (TRACESTATE, "a=1")]);
        let ids = Ids::new(1);
        let context = pass_on(&mut fields, Tracing::Always, &ids, None, None).unwrap();
        let parent = text(&fields, &TRACEPARENT);
        assert_eq!(parent.len(), 1);
        assert!(parent[0].starts_with(&format!("00-{TRACE}-")), "{parent:?}");
        assert!(parent[0].ends_with("-01") && !parent[0].contains("00f067aa0ba902b7"));
        assert_eq!(text(&fields, &TRACESTATE), ["a=1"]);

        let mut again = headers(&[(TRACEPARENT, future)]);
        assert_eq!(pass_on(&mut again, Tracing::Always, &ids, Some(context), None), Some(context));
        assert_eq!(text(&again, &TRACEPARENT), parent);
    }

    #[test]
    fn a_wrong_one_is_replaced_and_its_state_dropped() {
        let zero = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        for tracing in [Tracing::Pass, Tracing::Always] {
            for parents in [&["x"][..], &[zero], &[GOOD, GOOD], &[""]] {
                let mut fields = HeaderMap::new();
                for parent in parents {
                    fields.append(TRACEPARENT, parent.parse().unwrap());
                }
                fields.append(TRACESTATE, "a=1".parse().unwrap());
                assert_eq!(incoming(&fields), None);
                let context = pass_on(&mut fields, tracing, &Ids::new(7), None, None).unwrap();
                assert_eq!(incoming(&fields), Some(context), "{parents:?}");
                assert_ne!(format!("{:032x}", context.id()), TRACE);
                assert_eq!(text(&fields, &TRACESTATE), [""; 0]);
            }
        }
    }

    #[test]
    fn without_one_it_is_made_only_if_asked_for() {
        let mut fields = headers(&[(TRACESTATE, "a=1")]);
        assert_eq!(pass_on(&mut fields, Tracing::Pass, &Ids::new(1), None, None), None);
        assert!(fields.is_empty());
        let context = pass_on(&mut fields, Tracing::Always, &Ids::new(1), None, None);
        assert_eq!(incoming(&fields), context);
    }

    #[test]
    fn the_word_on_recording_is_passed_on() {
        let off = GOOD.replace("-01", "-00");
        for (parent, record, flags) in [
            (None, None, "01"),
            (None, Some(false), "00"),
            (None, Some(true), "01"),
            (Some(GOOD), Some(false), "01"),
            (Some(&*off), Some(false), "00"),
            (Some(&*off), Some(true), "01"),
        ] {
            let parent = parent.map(|parent| (TRACEPARENT, parent));
            let mut fields = headers(parent.as_slice());
            pass_on(&mut fields, Tracing::Always, &Ids::new(1), None, record);
            assert!(text(&fields, &TRACEPARENT)[0].ends_with(flags), "{parent:?} {record:?}");
        }
    }

    #[test]
    fn a_state_is_kept_up_to_its_limit_over_all_fields() {
        let long = |n: usize| format!("a={}", "x".repeat(n - 2));
        for (states, kept) in [
            (vec![long(512)], true),
            (vec![long(513)], false),
            (vec![long(256), long(255)], true),
            (vec![long(256), long(256)], false),
        ] {
            let mut fields = headers(&[(TRACEPARENT, GOOD)]);
            for state in &states {
                fields.append(TRACESTATE, state.parse().unwrap());
            }
            assert_eq!(untouched(&fields, Tracing::Pass).is_some(), kept);
            pass_on(&mut fields, Tracing::Pass, &Ids::new(1), None, None);
            assert_eq!(!text(&fields, &TRACESTATE).is_empty(), kept);
        }
    }

    #[test]
    fn a_share_is_about_what_it_says() {
        let ids = Ids::new(3);
        for (share, low, high) in
            [(0.0, 0, 0), (0.1, 900, 1_100), (0.5, 4_800, 5_200), (1.0, 10_000, 10_000)]
        {
            let hits = (0..10_000).filter(|_| ids.share(share)).count();
            assert!((low..=high).contains(&hits), "{share}: {hits}");
        }
    }
}

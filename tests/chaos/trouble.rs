//! Trouble: what chaos is up to, and for how long a visitor may feel it.

use std::collections::BTreeSet;
use std::time::Duration;

/// When something was, since the run began.
pub(crate) type At = Duration;

/// One kind of trouble.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trouble {
    /// The proxy is gone or starts.
    Proxy,
    /// The waker is gone or starts.
    Waker,
    /// The waker runs with fail points.
    FailPoints,
    /// The state directory's file system is full.
    FullDisk,
    /// This app's VM, or what runs in it, is ended by us.
    Vm(String),
    /// This app is parked.
    Parked(String),
}

/// How long trouble of any kind may still show: the longest backoff after a failed wake (60 s, half
/// as much again by jitter) and the wake that follows it.
const AFTERMATH: Duration = Duration::from_secs(150);
/// How long a proxy may take to have heard again from a waker that is back: three heartbeats of
/// 2 s, a connect, and what a loaded machine adds.
const RESYNC: Duration = Duration::from_secs(20);
/// How long a broken connection may take to be seen by whoever waits on it.
const CUT: Duration = Duration::from_secs(5);

/// What a visitor met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met<'a> {
    /// Nobody listened.
    NoConnection,
    /// The connection broke, before the answer or in the middle of it.
    Cut,
    /// An error of ours, with this code.
    Error(&'a str),
    /// An error of the agent's, with this code. The proxy takes our header off it.
    AgentError(&'a str),
}

/// All trouble there has been.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    spans: Vec<Span>,
}

#[derive(Debug)]
struct Span {
    trouble: Trouble,
    from: At,
    until: Option<At>,
}

impl Troubles {
    /// It begins, unless it is on already.
    pub(crate) fn begin(&mut self, trouble: Trouble, at: At) {
        if !self.is_on(&trouble) {
            self.spans.push(Span { trouble, from: at, until: None });
        }
    }

    /// It ends, if it was on.
    pub(crate) fn end(&mut self, trouble: &Trouble, at: At) {
        let on = |span: &&mut Span| span.until.is_none() && span.trouble == *trouble;
        if let Some(span) = self.spans.iter_mut().find(on) {
            span.until = Some(at);
        }
    }

    /// Whether it is on now.
    pub(crate) fn is_on(&self, trouble: &Trouble) -> bool {
        self.spans.iter().any(|span| span.until.is_none() && span.trouble == *trouble)
    }

    /// The kinds that are on now.
    pub(crate) fn on(&self) -> BTreeSet<&Trouble> {
        self.spans.iter().filter(|span| span.until.is_none()).map(|span| &span.trouble).collect()
    }

    /// Whether what a visitor of `app` met between `began` and `ended` comes from trouble.
    pub(crate) fn excuse(&self, app: &str, met: Met<'_>, began: At, ended: At) -> bool {
        let any = |linger: Duration, is: &dyn Fn(&Trouble) -> bool| {
            self.spans.iter().any(|span| {
                is(&span.trouble)
                    && span.from <= ended
                    && span.until.is_none_or(|until| began <= until.saturating_add(linger))
            })
        };
        let proxy = |t: &Trouble| *t == Trouble::Proxy;
        let waker = |t: &Trouble| matches!(t, Trouble::Proxy | Trouble::Waker);
        let vm = |t: &Trouble| matches!(t, Trouble::Vm(of) | Trouble::Parked(of) if of == app);
        match met {
            Met::NoConnection => any(Duration::ZERO, &proxy),
            Met::Cut => any(CUT, &proxy) || any(CUT, &vm),
            Met::AgentError("app-broke" | "down" | "starting") => any(CUT, &vm),
            Met::Error("waker-unreachable") => any(RESYNC, &waker),
            Met::Error("stopping") => any(CUT, &proxy),
            Met::Error("app-broke" | "not-replayable") => any(CUT, &vm) || any(CUT, &proxy),
            // An app is parked by us, or by its waker after the wakes that we let fail.
            Met::Error(
                "parked" | "wake-failed" | "backoff" | "deadline" | "not-serving" | "full"
                | "node-full",
            ) => any(AFTERMATH, &|_| true),
            // Codes that nothing excuses, and words that are none of ours.
            Met::Error(_) | Met::AgentError(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> At {
        Duration::from_secs(seconds)
    }

    #[test]
    fn each_kind_excuses_its_own() {
        let vm = || Trouble::Vm("a".into());
        for (trouble, met, excused) in [
            (Trouble::Proxy, Met::NoConnection, true),
            (Trouble::Waker, Met::NoConnection, false),
            (Trouble::Proxy, Met::Cut, true),
            (vm(), Met::Cut, true),
            (Trouble::Vm("b".into()), Met::Cut, false),
            (Trouble::Waker, Met::Cut, false),
            (Trouble::FailPoints, Met::Cut, false),
            (Trouble::FullDisk, Met::Cut, false),
            (Trouble::Parked("a".into()), Met::Cut, true),
            (Trouble::Waker, Met::Error("waker-unreachable"), true),
            (vm(), Met::Error("waker-unreachable"), false),
            (vm(), Met::Error("app-broke"), true),
            (Trouble::Waker, Met::Error("app-broke"), false),
            (vm(), Met::AgentError("app-broke"), true),
            (Trouble::Waker, Met::AgentError("app-broke"), false),
            (Trouble::FullDisk, Met::Error("wake-failed"), true),
            (Trouble::Proxy, Met::Error("internal"), false),
            (Trouble::Proxy, Met::Error("unknown-host"), false),
            (Trouble::Proxy, Met::Error(""), false),
            (Trouble::Proxy, Met::Error("made-up"), false),
        ] {
            let mut troubles = Troubles::default();
            troubles.begin(trouble.clone(), s(10));
            troubles.end(&trouble, s(20));
            assert_eq!(troubles.excuse("a", met, s(15), s(16)), excused, "{trouble:?}: {met:?}");
            assert!(!troubles.excuse("a", met, s(0), s(9)), "not before: {trouble:?}: {met:?}");
            assert!(!troubles.excuse("a", met, s(500), s(501)), "nor long after: {trouble:?}");
        }
    }

    #[test]
    fn a_visit_that_only_touches_it_is_excused() {
        let mut troubles = Troubles::default();
        troubles.begin(Trouble::Proxy, s(10));
        assert!(troubles.excuse("a", Met::NoConnection, s(5), s(10)), "it ended in it");
        assert!(troubles.excuse("a", Met::NoConnection, s(5), s(50)), "it is still on");
        troubles.end(&Trouble::Proxy, s(20));
        assert!(troubles.excuse("a", Met::NoConnection, s(20), s(21)), "it began in it");
        assert!(!troubles.excuse("a", Met::NoConnection, s(21), s(22)));
        assert!(troubles.excuse("a", Met::Cut, s(24), s(25)), "a cut is seen a little later");
        assert!(!troubles.excuse("a", Met::Cut, s(26), s(27)));
    }

    #[test]
    fn trouble_is_on_once() {
        let mut troubles = Troubles::default();
        troubles.begin(Trouble::Waker, s(1));
        troubles.begin(Trouble::Waker, s(2));
        troubles.end(&Trouble::Proxy, s(3));
        assert_eq!(troubles.on(), BTreeSet::from([&Trouble::Waker]));
        troubles.end(&Trouble::Waker, s(3));
        assert_eq!(troubles.on(), BTreeSet::new());
    }
}

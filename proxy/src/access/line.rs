//! One request as one line of JSON. Pure: a record in, bytes out.

use std::fmt::{Display, Write};
use std::net::IpAddr;
use std::time::Duration;

use http::Version;
use rouse_gate::times::Shares;
use rouse_protocol::wake::Phase;

/// How much of one string is written, in bytes as they stand in the line.
const MAX_STRING: usize = 1024;

/// What is written of a request. What is not there is left out of the line.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// When the answer was over, since 1970.
    pub time: Duration,
    /// The app's id.
    pub app: Option<&'a str>,
    /// The life that was visited; none for an app that never sleeps.
    pub generation: Option<u64>,
    /// As the client named it.
    pub host: Option<&'a [u8]>,
    /// The method.
    pub method: &'a str,
    /// The path, without its query unless that was asked for.
    pub path: &'a [u8],
    /// What the client spoke.
    pub protocol: Version,
    /// The version of TLS, if it was there.
    pub tls: Option<&'a str>,
    /// The subject of the certificate that the client has shown.
    pub certificate: Option<&'a str>,
    /// Who asked.
    pub client: Option<IpAddr>,
    /// The answer's status; none when the client left without one.
    pub status: Option<u16>,
    /// Bytes of the answer's body.
    pub bytes_out: u64,
    /// Bytes of the request's body.
    pub bytes_in: u64,
    /// From the request's arrival to here.
    pub duration: Duration,
    /// For how long it was held.
    pub held: Option<Duration>,
    /// How its app came to serve, for one that was held.
    pub wake: Option<&'a str>,
    /// What its wait was made of.
    pub phases: Option<&'a Shares>,
    /// The error of ours that it was answered with.
    pub error: Option<&'a str>,
    /// As the client said.
    pub user_agent: Option<&'a [u8]>,
    /// The trace's id.
    pub trace_id: Option<u128>,
    /// The connection to the app was there already.
    pub upstream_reused: Option<bool>,
    /// How often it was sent, or held, anew.
    pub retries: u8,
}

impl Record<'_> {
    /// Whether the line is written whatever the sample says.
    pub fn is_remarkable(&self) -> bool {
        let failed = self.status.is_some_and(|status| status >= 500);
        failed || self.error.is_some() || self.held.is_some() || self.wake.is_some()
    }

    /// The line, with its end.
    pub fn line(&self) -> Vec<u8> {
        let mut line = Line { text: String::with_capacity(512) };
        line.text.push_str("{\"time\":\"");
        time(&mut line.text, self.time);
        line.text.push('"');
        line.some("app", self.app.map(str::as_bytes));
        line.number("generation", self.generation);
        line.some("host", self.host);
        line.some("method", Some(self.method.as_bytes()));
        line.some("path", Some(self.path));
        line.some("protocol", Some(protocol(self.protocol).as_bytes()));
        line.some("tls", self.tls.map(str::as_bytes));
        line.some("client_certificate", self.certificate.map(str::as_bytes));
        if let Some(client) = self.client {
            line.quoted("client", client);
        }
        line.number("status", self.status.map(u64::from));
        line.number("bytes_out", Some(self.bytes_out));
        line.number("bytes_in", Some(self.bytes_in));
        line.ms("duration_ms", Some(self.duration));
        line.ms("held_ms", self.held);
        line.some("wake", self.wake.map(str::as_bytes));
        if let Some(shares) = self.phases {
            line.key("phases");
            for (i, phase) in Phase::ALL.into_iter().enumerate() {
                line.text.push_str(if i == 0 { "{\"" } else { ",\"" });
                line.text.push_str(phase.as_str());
                line.text.push_str("\":");
                ms(&mut line.text, shares.get(phase));
            }
            line.text.push('}');
        }
        line.some("error", self.error.map(str::as_bytes));
        line.some("user_agent", self.user_agent);
        if let Some(id) = self.trace_id {
            line.quoted("trace_id", format_args!("{id:032x}"));
        }
        if let Some(reused) = self.upstream_reused {
            line.key("upstream_reused");
            line.text.push_str(if reused { "true" } else { "false" });
        }
        line.number("retries", (self.retries > 0).then_some(self.retries.into()));
        line.text.push_str("}\n");
        line.text.into_bytes()
    }
}

struct Line {
    text: String,
}

impl Line {
    fn key(&mut self, name: &str) {
        self.text.push_str(",\"");
        self.text.push_str(name);
        self.text.push_str("\":");
    }

    fn number(&mut self, name: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.key(name);
            digits(&mut self.text, value, 1);
        }
    }

    fn ms(&mut self, name: &str, value: Option<Duration>) {
        if let Some(value) = value {
            self.key(name);
            ms(&mut self.text, value);
        }
    }

    /// A value that has nothing to escape.
    fn quoted(&mut self, name: &str, value: impl Display) {
        self.key(name);
        self.text.push('"');
        // A String takes all.
        let _ = write!(self.text, "{value}");
        self.text.push('"');
    }

    fn some(&mut self, name: &str, value: Option<&[u8]>) {
        if let Some(value) = value {
            self.key(name);
            self.text.push('"');
            escape(&mut self.text, value);
            self.text.push('"');
        }
    }
}

/// Writes `n` with at least `least` digits. Formatting machinery would take most of a line's time.
fn digits(text: &mut String, mut n: u64, least: usize) {
    let mut all = [b'0'; 20];
    let mut at = all.len();
    while n > 0 || all.len() - at < least.min(all.len()) {
        at -= 1;
        all[at] = b'0' + (n % 10) as u8;
        n /= 10;
    }
    text.push_str(str::from_utf8(&all[at..]).unwrap_or_default());
}

/// Milliseconds, to the microsecond.
fn ms(text: &mut String, took: Duration) {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    digits(text, micros / 1_000, 1);
    text.push('.');
    digits(text, micros % 1_000, 3);
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_09 => "HTTP/0.9",
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_11 => "HTTP/1.1",
        Version::HTTP_2 => "h2",
        Version::HTTP_3 => "h3",
        _ => "?",
    }
}

/// Writes `bytes` as the inside of a JSON string. What is no UTF-8 becomes U+FFFD, and what is too
/// long is cut and ends with an ellipsis.
fn escape(text: &mut String, bytes: &[u8]) {
    // Nearly every string is plain and short.
    let plain = |b: &u8| (0x20..0x7f).contains(b) && !matches!(b, b'"' | b'\\');
    if bytes.len() <= MAX_STRING
        && bytes.iter().all(plain)
        && let Ok(whole) = str::from_utf8(bytes)
    {
        text.push_str(whole);
        return;
    }
    let end = text.len() + MAX_STRING;
    for chunk in bytes.utf8_chunks() {
        let replaced = (!chunk.invalid().is_empty()).then_some(char::REPLACEMENT_CHARACTER);
        for c in chunk.valid().chars().chain(replaced) {
            let before = text.len();
            match c {
                '"' => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                // C0, DEL and C1: nothing that a terminal would obey.
                c if c.is_control() => {
                    let _ = write!(text, "\\u{:04x}", u32::from(c));
                }
                c => text.push(c),
            }
            if text.len() > end {
                text.truncate(before);
                text.push('…');
                return;
            }
        }
    }
}

/// RFC 3339 in UTC, to the millisecond.
fn time(text: &mut String, since_1970: Duration) {
    let seconds = since_1970.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days of the Gregorian calendar, counted in eras of 400 years that begin in March.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + carry;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let ms = u64::from(since_1970.subsec_millis());
    for (n, least, after) in [
        (year, 4, '-'),
        (month, 2, '-'),
        (day_of_month, 2, 'T'),
        (hour, 2, ':'),
        (minute, 2, ':'),
        (second, 2, '.'),
        (ms, 3, 'Z'),
    ] {
        digits(text, n, least);
        text.push(after);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rouse_gate::times::WakeTimes;
    use rouse_protocol::wake::{Outcome, PhaseTime};
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;

    fn record() -> Record<'static> {
        Record {
            time: Duration::from_millis(1_796_100_000_123),
            app: None,
            generation: None,
            host: None,
            method: "GET",
            path: b"/",
            protocol: Version::HTTP_11,
            tls: None,
            certificate: None,
            client: None,
            status: Some(200),
            bytes_out: 5,
            bytes_in: 0,
            duration: Duration::from_micros(1_234),
            held: None,
            wake: None,
            phases: None,
            error: None,
            user_agent: None,
            trace_id: None,
            upstream_reused: None,
            retries: 0,
        }
    }

    fn parsed(record: &Record<'_>) -> Value {
        let line = record.line();
        assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
        assert_eq!(line.last(), Some(&b'\n'));
        serde_json::from_slice(&line).unwrap()
    }

    #[test]
    fn the_least_line() {
        let line = String::from_utf8(record().line()).unwrap();
        assert_eq!(
            line,
            "{\"time\":\"2026-12-01T04:40:00.123Z\",\"method\":\"GET\",\"path\":\"/\",\
             \"protocol\":\"HTTP/1.1\",\"status\":200,\"bytes_out\":5,\"bytes_in\":0,\
             \"duration_ms\":1.234}\n"
        );
    }

    #[test]
    fn the_whole_line() {
        let t = Instant::now();
        let ms = Duration::from_millis;
        let load = [PhaseTime::new(Phase::Load, ms(7))];
        let times =
            WakeTimes::new(Outcome::Resumed, &load, [t, t + ms(8), t + ms(20)], Duration::ZERO);
        let shares = times.shares(t, t + ms(21), t + ms(23));
        let got = parsed(&Record {
            app: Some("hello"),
            generation: Some(7),
            host: Some(b"hello.test:8443"),
            protocol: Version::HTTP_2,
            tls: Some("TLSv1.3"),
            certificate: Some("CN=cdn"),
            client: Some("2001:db8::1".parse().unwrap()),
            status: Some(503),
            held: Some(ms(21)),
            wake: Some("resumed"),
            phases: Some(&shares),
            error: Some("deadline"),
            user_agent: Some(b"curl/8"),
            trace_id: Some(0x4bf9_2f35),
            upstream_reused: Some(false),
            retries: 2,
            ..record()
        });
        assert_eq!(
            got,
            json!({
                "time": "2026-12-01T04:40:00.123Z", "app": "hello", "generation": 7,
                "host": "hello.test:8443", "method": "GET", "path": "/", "protocol": "h2",
                "tls": "TLSv1.3", "client_certificate": "CN=cdn", "client": "2001:db8::1", "status": 503, "bytes_out": 5,
                "bytes_in": 0, "duration_ms": 1.234, "held_ms": 21.0, "wake": "resumed",
                "phases": {
                    "hold": 1.0, "queue": 0.0, "fetch": 0.0, "image": 0.0, "vmm": 0.0, "load": 7.0,
                    "resume": 0.0, "gate": 12.0, "release": 1.0, "app": 2.0,
                },
                "error": "deadline", "user_agent": "curl/8",
                "trace_id": "0000000000000000000000004bf92f35", "upstream_reused": false,
                "retries": 2,
            })
        );
    }

    #[test]
    fn what_is_written_whatever_the_sample_says() {
        let held = Some(Duration::ZERO);
        for (record, remarkable) in [
            (record(), false),
            (Record { status: Some(404), ..record() }, false),
            (Record { status: None, ..record() }, false),
            (Record { status: Some(500), ..record() }, true),
            (Record { status: Some(404), error: Some("unknown-host"), ..record() }, true),
            (Record { held, ..record() }, true),
            (Record { wake: Some("joined"), ..record() }, true),
        ] {
            assert_eq!(record.is_remarkable(), remarkable, "{record:?}");
        }
    }

    #[test]
    fn strings_are_cut_as_they_are_written() {
        for (path, written, cut) in [
            ("a".repeat(1_024), 1_024, false),
            ("a".repeat(1_025), 1_024, true),
            ("é".repeat(512), 1_024, false),
            ("é".repeat(513), 1_024, true),
            ("\"".repeat(600), 1_024, true),
            ("\u{1}".repeat(1_000), 1_020, true),
        ] {
            let mut text = String::new();
            escape(&mut text, path.as_bytes());
            assert_eq!(text.ends_with('…'), cut);
            assert_eq!(text.trim_end_matches('…').len(), written);
            let back: String = serde_json::from_str(&format!("\"{text}\"")).unwrap();
            assert!(path.starts_with(back.trim_end_matches('…')));
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_078_012_800, "2004-02-29T00:00:00.000Z"),
            (1_798_761_599, "2026-12-31T23:59:59.000Z"),
            (1_798_761_600, "2027-01-01T00:00:00.000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799, "9999-12-31T23:59:59.000Z"),
        ] {
            let mut text = String::new();
            time(&mut text, Duration::from_secs(seconds));
            assert_eq!(text, expected, "{seconds}");
        }
    }

    #[test]
    fn numbers_are_those_of_the_standard_library() {
        for n in [0, 1, 9, 10, 99, 100, 12_345, u64::MAX] {
            for least in [0, 1, 3, 20] {
                let mut text = String::new();
                digits(&mut text, n, least);
                let least = least.max(usize::from(n > 0));
                let expected = if least == 0 { String::new() } else { format!("{n:0least$}") };
                assert_eq!(text, expected);
            }
        }
        let mut text = String::new();
        ms(&mut text, Duration::from_micros(1_002_003));
        ms(&mut text, Duration::ZERO);
        assert_eq!(text, "1002.0030.000");
    }

    proptest! {
        #[test]
        fn any_bytes_are_one_line_that_can_be_read(path in any::<Vec<u8>>(), agent in any::<String>()) {
            let agent: String = agent.chars().take(100).collect();
            let got = parsed(&Record {
                path: &path,
                user_agent: Some(agent.as_bytes()),
                ..record()
            });
            let lossy = String::from_utf8_lossy(&path).into_owned();
            prop_assert_eq!(&got["path"], &json!(lossy));
            prop_assert_eq!(&got["user_agent"], &json!(agent));
        }
    }
}

//! What goes wrong on the way to the server, and when.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};

use crate::shape::Bucket;

/// One thing that goes wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is answered with this status and no body.
    Status(StatusCode),
    /// It is answered with this status and S3's error of this code.
    Code(StatusCode, &'static str),
    /// It is answered 503 `SlowDown`.
    SlowDown,
    /// The connection is closed after so many bytes of the answer's body.
    Truncate(u64),
    /// The connection is reset before an answer.
    Reset,
    /// The byte of the answer's body at this offset is another one.
    Flip(u64),
    /// The byte of the request's body at this offset is another one when it arrives.
    FlipSent(u64),
    /// There is no answer, ever.
    Hang,
}

/// Whether a rule is about a request with this method, path and query.
type Predicate = Box<dyn Fn(&Method, &str) -> bool + Send>;

struct Rule {
    left: Option<u32>,
    of: Predicate,
    fault: Fault,
}

#[derive(Default)]
struct Set {
    rules: Vec<Rule>,
    latency: Duration,
    requests: HashMap<Method, u64>,
    last: HashMap<Method, HeaderMap>,
}

/// The faults of a server, all settable while it runs. None are set when it starts.
#[derive(Default)]
pub struct Faults {
    set: Mutex<Set>,
    pub(crate) up: Bucket,
    pub(crate) down: Bucket,
    /// What each body alone may carry, in bytes per second; 0: all it can.
    pub(crate) each: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
}

impl Faults {
    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how long after a request has come its answer begins, at the least.
    pub fn latency(&self, first_byte: Duration) {
        self.set().latency = first_byte;
    }

    /// Sets what all connections together may carry, in bytes per second of bodies, to the server
    /// and from it each; none: all they can.
    pub fn bandwidth(&self, bytes_per_second: Option<u64>) {
        self.up.rate(bytes_per_second);
        self.down.rate(bytes_per_second);
    }

    /// Sets what each connection may carry besides, in bytes per second of bodies, to the server and from it each;
    /// none: all it can.
    pub fn bandwidth_each(&self, bytes_per_second: Option<u64>) {
        self.each.store(bytes_per_second.unwrap_or(0), Ordering::Relaxed);
    }

    /// The next `n` requests, whatever they are, meet `fault`.
    pub fn next(&self, n: u32, fault: Fault) {
        self.when(Some(n), |_, _| true, fault);
    }

    /// `n` requests, or all, of which `of` holds meet `fault`. It is given the method and the path
    /// with its query. Of rules that hold the first that was set counts.
    pub fn when(
        &self,
        n: Option<u32>,
        of: impl Fn(&Method, &str) -> bool + Send + 'static,
        fault: Fault,
    ) {
        self.set().rules.push(Rule { left: n, of: Box::new(of), fault });
    }

    /// Forgets all faults, latency and bandwidth; the counts stay.
    pub fn clear(&self) {
        self.bandwidth(None);
        self.bandwidth_each(None);
        let mut set = self.set();
        set.rules.clear();
        set.latency = Duration::ZERO;
    }

    /// How many requests with this method have come.
    pub fn requests(&self, method: &Method) -> u64 {
        self.set().requests.get(method).copied().unwrap_or(0)
    }

    /// How many requests have come.
    pub fn all_requests(&self) -> u64 {
        self.set().requests.values().sum()
    }

    /// How many bytes of bodies have been sent in answers.
    pub fn bytes_out(&self) -> u64 {
        self.bytes_out.load(Ordering::Relaxed)
    }

    /// The header of the last request with this method.
    pub fn last_header(&self, method: &Method) -> Option<HeaderMap> {
        self.set().last.get(method).cloned()
    }

    /// Counts a request, and tells what it meets and how long it waits.
    pub(crate) fn meet(
        &self,
        method: &Method,
        path: &str,
        header: &HeaderMap,
    ) -> (Option<Fault>, Duration) {
        let mut set = self.set();
        *set.requests.entry(method.clone()).or_default() += 1;
        set.last.insert(method.clone(), header.clone());
        let rule = set.rules.iter_mut().find(|r| r.left != Some(0) && (r.of)(method, path));
        let fault = rule.map(|rule| {
            rule.left = rule.left.map(|left| left - 1);
            rule.fault.clone()
        });
        (fault, set.latency)
    }
}

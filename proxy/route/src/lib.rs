//! Routing: a request's host, path and headers → an app.
//!
//! A [`Rule`] says which requests are an app's: a [`HostPattern`], below it a [`PathPrefix`], and
//! headers that a request must have. Of all rules that match, the most specific wins:
//!
//! 1. an exact host, before `*.example.com` (exactly one label, as in a certificate: RFC 6125 §6.4.3),
//!    before `*`;
//! 2. then the longest path prefix;
//! 3. then the most headers;
//! 4. then the app whose id sorts first.
//!
//! So a host falls through: where only `/api` of `a.example` is claimed, `/x` of it goes on to
//! `*.example` and `*`.
//!
//! Two apps may claim the very same. The first to claim it keeps it, also while its other rules change;
//! the other is told of a [`Conflict`], and takes over when the first lets go.
//!
//! # Paths
//! The app gets the path as the visitor sent it. For matching alone it is read as the app may come to
//! read it, so that no spelling slips past a more specific rule: percent signs are decoded, once and all
//! of them, an encoded slash is a slash, runs of slashes are one, `.` and `..` are resolved and never lead
//! above the root (RFC 3986 §5.2.4), and what follows `?` or `#` does not count. A `\` and a `;` are
//! letters like any other, and so is the case of letters. `/api` matches `/api`, `/api/` and
//! `/api/x`, not `/apix`. What does not start with `/` (`OPTIONS *`) matches only rules without a path.
//!
//! # Cost
//! [`RouteTable`] is an immutable picture: a look-up takes no lock. It is one hash look-up for a host
//! without paths, at most [`MAX_DEPTH`] more for one with paths, the same again
//! for `*.` and `*` where nothing matched before, and then one comparison for each rule that differs from
//! others only in its headers. It allocates nothing, unless the host has capitals or the path is long and
//! oddly spelt. A change copies one shard of 256, not the table, and all rules that differ from its own only
//! in their headers.
//!
//! `examples/lookup.rs` measures it. With 10,000 apps, hosts at random, the least of 100 rounds on a busy
//! machine: an exact host 0.11 µs, with a port 0.11 to 0.15 µs, with paths 0.13 to 0.25 µs; a change 10 µs,
//! in a batch 2 to 3 µs; and 366 bytes an app.
//!
//! | module | what |
//! | --- | --- |
//! | [`rouse_protocol::route`] | a rule and its parts, as text, JSON and TOML |
//! | `normal` | how a request's path is read |
//! | `table`, `slot` | the picture, and one place in it: a host and a path prefix |
//! | `routes` | who claims what, and what a change does |
//! | `live` | the shell: one writer at a time, readers without a lock |
#![forbid(unsafe_code)]

mod live;
mod normal;
mod routes;
mod slot;
mod table;

pub use live::LiveRoutes;
pub use rouse_protocol::route::{
    HeaderMatch, HeaderMatches, HostPattern, MAX_DEPTH, PathPrefix, Rule, Want,
};
pub use routes::{Changed, Conflict, Passed, Routes};
pub use table::RouteTable;

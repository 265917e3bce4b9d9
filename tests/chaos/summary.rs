//! What is told at the end.

use crate::director::Director;
use crate::points::{POINTS, hit};
use crate::world::{World, print as line};

/// How many violations are shown.
const SHOWN: usize = 20;

/// Prints the summary, and returns whether all held.
pub(crate) fn print(
    world: &World,
    director: &Director,
    seconds: u64,
    seed: u64,
    looks: u64,
) -> bool {
    let points: Vec<String> = POINTS.iter().map(|point| (*point).to_owned()).collect();
    for (point, hits) in hit(&director.node.waker.log(), &points) {
        *world.tally().entry(("fail points hit", point)).or_default() += hits;
    }
    line(format_args!(""));
    let mut last = "";
    for ((group, what), count) in world.tally().iter() {
        if *group != last {
            line(format_args!("{group}"));
            last = group;
        }
        line(format_args!("{count:>8}  {what}"));
    }
    let (violations, more) =
        world.ledger(|ledger, _| (ledger.violations().to_vec(), ledger.more_violations()));
    if !violations.is_empty() {
        line(format_args!("\n{}\n{}", director.node.waker.tail(), director.node.proxy.tail()));
    }
    let all = violations.len() + more;
    line(format_args!("\n{seconds} s, seed {seed}, {looks} looks, {all} violations"));
    for violation in violations.iter().take(SHOWN) {
        line(format_args!("{:9.3}  {}", violation.at.as_secs_f64(), violation.what));
    }
    violations.is_empty()
}

//! Visitors who come in the middle of a sleep.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rouse_protocol::client::ClientError;
use rouse_protocol::wake::{SleepRefusal, SleepReport};
use rouse_tests::{Node, Visit};

use super::heap::Heap;
use super::place::Place;
use super::{APP, woken};
use crate::units::ms;

/// At how many instants of a sleep visitors come.
pub(super) const INSTANTS: usize = 10;
/// No two sleeps take equally long: where one was over before its visitor came, so often.
const TRIES: usize = 5;

/// How a sleep went on when its visitor had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleep {
    /// It was given up for the visitor.
    Cancelled,
    /// It had not been agreed, and was not: the visitor was in flight.
    Busy,
    /// All was durable already and the VM on its way out: the visitor met an image.
    Over,
    /// It was finished though it could have been given up: the visitor was left waiting.
    Finished,
}

impl Sleep {
    pub(super) const ALL: [Self; 4] = [Self::Cancelled, Self::Busy, Self::Over, Self::Finished];

    /// The word in the report.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Busy => "busy",
            Self::Over => "over",
            Self::Finished => "finished",
        }
    }
}

/// One visitor.
#[derive(Clone, Debug)]
pub(super) struct Visitor {
    /// At which of the instants it came, from 0.
    pub(super) instant: usize,
    /// How long its page took, in milliseconds.
    pub(super) ms: f64,
    /// What `Rouse-Wake` said on it; nothing when it was not held.
    pub(super) how: String,
    /// What became of the sleep.
    pub(super) sleep: Sleep,
}

impl Visitor {
    /// For the line of a round.
    pub(super) fn tell(&self) -> String {
        format!("{:.0} % {:.0} ms {}", percent(self.instant), self.ms, self.sleep.as_str())
    }
}

/// How much of a sleep is over at an instant.
pub(super) fn percent(instant: usize) -> f64 {
    (2 * instant + 1) as f64 * 100.0 / (2 * INSTANTS) as f64
}

/// One visitor at each instant of a sleep of this length, as far as sleeps were long enough. The app
/// sleeps before and after.
pub(super) async fn round(
    node: &Node,
    place: &Place,
    heap: &mut Heap,
    length: Duration,
) -> anyhow::Result<Vec<Visitor>> {
    let mut all = Vec::new();
    for instant in 0..INSTANTS {
        let after = length.mul_f64(percent(instant) / 100.0);
        for _ in 0..TRIES {
            let met = attempt(node, place, heap, after);
            if let Some(met) = met.await.with_context(|| format!("instant {}", instant + 1))? {
                all.push(Visitor { instant, ms: ms(met.took), how: met.how, sleep: met.sleep });
                break;
            }
        }
    }
    Ok(all)
}

/// What one visitor met.
struct Met {
    took: Duration,
    how: String,
    sleep: Sleep,
}

/// A life like every other, its sleep, and a visitor so long after the sleep was asked for. None when
/// the sleep was over before.
async fn attempt(
    node: &Node,
    place: &Place,
    heap: &mut Heap,
    after: Duration,
) -> anyhow::Result<Option<Met>> {
    place.settle().await?;
    woken(node).await?;
    heap.check(node).await?;
    heap.refill(node).await?;

    let visit = Visit::get("/");
    let start = Instant::now();
    let asked = async {
        let answer = node.try_sleep(APP).await;
        (answer, start.elapsed())
    };
    let visited = async {
        tokio::time::sleep(after).await;
        let came = start.elapsed();
        let reply = visit.send(node.http()).await;
        (came, start.elapsed(), reply)
    };
    let ((answer, answered), (came, served, reply)) = tokio::join!(asked, visited);

    let reply = reply.context("the visitor got no page")?;
    ensure!(reply.status == 200 && !reply.body.is_empty(), "the visitor got no page: {reply:?}");
    let how = reply.header("rouse-wake").to_owned();
    let sleep = judge(came, answered, answer)?;
    node.sleep(APP).await;
    let took = served.saturating_sub(came);
    Ok(sleep.map(|sleep| Met { took, how, sleep }))
}

/// What became of a sleep that a visitor came to; none when it had its answer before. All times are
/// from when it was asked for.
fn judge(
    came: Duration,
    answered: Duration,
    answer: Result<SleepReport, ClientError>,
) -> anyhow::Result<Option<Sleep>> {
    let sleep = match answer {
        Ok(report) if came < Duration::from_micros(report.durable_us) => Sleep::Finished,
        Ok(_) => Sleep::Over,
        Err(ClientError::Refused(problem)) => match problem.code() {
            code if code == SleepRefusal::Cancelled.as_str() => Sleep::Cancelled,
            code if code == SleepRefusal::Busy.as_str() => Sleep::Busy,
            _ => bail!("the sleep came to no good end: {}", ClientError::Refused(problem)),
        },
        Err(error) => return Err(error).context("the waker was asked for a sleep"),
    };
    Ok((came < answered).then_some(sleep))
}

#[cfg(test)]
mod tests {
    use rouse_protocol::app::Generation;
    use rouse_protocol::problem::Problem;
    use rouse_protocol::wake::Tier;

    use super::*;

    fn slept(durable_ms: u64) -> SleepReport {
        SleepReport {
            generation: Generation(8),
            tier: Tier::Image,
            agreed_us: 0,
            flushed_us: 0,
            stopped_us: 0,
            saved_us: 0,
            durable_us: durable_ms * 1000,
            published_us: durable_ms * 1000 + 1,
            written_bytes: 1,
            image_bytes: 1,
        }
    }

    fn refused(why: SleepRefusal) -> ClientError {
        ClientError::Refused(Problem::new(409, why.as_str(), "not asleep", "x"))
    }

    #[test]
    fn a_sleep_and_its_visitor() {
        let at = Duration::from_millis;
        let cancelled = || Err(refused(SleepRefusal::Cancelled));
        let busy = || Err(refused(SleepRefusal::Busy));
        for (came, answered, answer, sleep) in [
            (100, 103, cancelled(), Some(Sleep::Cancelled)),
            (5, 8, busy(), Some(Sleep::Busy)),
            (290, 300, Ok(slept(280)), Some(Sleep::Over)),
            (270, 300, Ok(slept(280)), Some(Sleep::Finished)),
            // Whose sleep was over before came too late to tell anything.
            (300, 300, Ok(slept(280)), None),
            (290, 2, busy(), None),
            (290, 2, cancelled(), None),
        ] {
            let told = format!("came at {came} ms, answered {answer:?} at {answered} ms");
            let judged = judge(at(came), at(answered), answer).unwrap();
            assert_eq!(judged, sleep, "{told}");
        }
        for why in [SleepRefusal::Failed, SleepRefusal::NoAgreement, SleepRefusal::NotAwake] {
            let error = judge(at(1), at(2), Err(refused(why))).unwrap_err();
            assert!(error.to_string().contains(why.as_str()), "{error}");
        }
        assert!(judge(at(1), at(2), Err(ClientError::Ended)).is_err());
    }

    #[test]
    fn the_instants_are_evenly_spread() {
        let all: Vec<_> = (0..INSTANTS).map(percent).collect();
        assert_eq!(all, [5.0, 15.0, 25.0, 35.0, 45.0, 55.0, 65.0, 75.0, 85.0, 95.0]);
    }
}

//! The dice: every decision of a run comes from one seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rouse_protocol::wake::Tier;

use crate::answer::Ask;

/// What chaos does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// An operator puts an app to sleep.
    Sleep {
        /// Which.
        app: usize,
        /// How deep.
        tier: Tier,
    },
    /// An operator wakes an app.
    Wake {
        /// Which.
        app: usize,
    },
    /// An operator puts an app to sleep and boots it cold.
    Boot {
        /// Which.
        app: usize,
    },
    /// An operator parks an app, and clears it after a while.
    Park {
        /// Which.
        app: usize,
        /// For how long.
        lasts: Duration,
    },
    /// kill -9 of the waker.
    KillWaker {
        /// How long it stays away.
        away: Duration,
    },
    /// SIGTERM to the waker.
    StopWaker {
        /// How long it stays away.
        away: Duration,
    },
    /// kill -9 of the proxy.
    KillProxy {
        /// How long it stays away.
        away: Duration,
    },
    /// kill -9 of an app's VMM.
    KillVmm {
        /// Whose.
        app: usize,
    },
    /// kill -9 of the agent in an app's guest.
    KillAgent {
        /// Whose.
        app: usize,
    },
    /// The app's own process ends.
    CrashApp {
        /// Which.
        app: usize,
        /// How long init waits before it starts it again.
        away: Duration,
    },
    /// Everything is killed at once, as when the host goes down.
    Reboot {
        /// How long waker and proxy stay away.
        away: [Duration; 2],
    },
    /// The state directory's file system gets full.
    FillDisk {
        /// But for so many bytes.
        free: u64,
        /// For how long.
        lasts: Duration,
    },
    /// Nothing, so that apps fall asleep by themselves.
    Rest {
        /// For how long.
        lasts: Duration,
    },
}

/// What can be done at all in this run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Can {
    /// The guest's agent can be killed.
    pub(crate) kill_agent: bool,
    /// The state directory has a file system of its own.
    pub(crate) fill_disk: bool,
    /// Apps have a disk, and with it a log.
    pub(crate) log: bool,
}

/// One visit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// To which app.
    pub(crate) app: usize,
    /// For what.
    pub(crate) ask: Ask,
    /// After how long the visitor hangs up, whatever he has by then.
    pub(crate) leaves: Option<Duration>,
}

/// A source of decisions: the same seed, the same decisions.
#[derive(Debug)]
pub(crate) struct Dice {
    rng: StdRng,
    apps: usize,
    entries: u64,
}

impl Dice {
    /// Two that do not disturb each other: one for deeds, one for visits.
    pub(crate) fn pair(seed: u64, apps: usize) -> [Self; 2] {
        let mut first = StdRng::seed_from_u64(seed);
        let second = StdRng::from_rng(&mut first);
        [first, second].map(|rng| Self { rng, apps, entries: 0 })
    }

    /// Something between.
    pub(crate) fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(from..=to))
    }

    /// How long it is until the next deed.
    pub(crate) fn pause(&mut self) -> Duration {
        self.ms(100, 2500)
    }

    /// The next deed.
    pub(crate) fn deed(&mut self, can: Can) -> Deed {
        let app = self.rng.random_range(0..self.apps);
        loop {
            let deed = match self.rng.random_range(0..100) {
                0..26 => {
                    let image = self.rng.random_bool(0.7);
                    Deed::Sleep { app, tier: if image { Tier::Image } else { Tier::Paused } }
                }
                26..36 => Deed::Wake { app },
                36..41 => Deed::Boot { app },
                41..45 => Deed::Park { app, lasts: self.ms(200, 5000) },
                45..57 => Deed::KillWaker { away: self.ms(0, 3000) },
                57..61 => Deed::StopWaker { away: self.ms(0, 3000) },
                61..66 => Deed::KillProxy { away: self.ms(0, 2000) },
                66..75 => Deed::KillVmm { app },
                75..79 => Deed::KillAgent { app },
                79..83 => Deed::CrashApp { app, away: self.ms(0, 2000) },
                83..87 => Deed::Reboot { away: [self.ms(0, 3000), self.ms(0, 3000)] },
                87..92 => Deed::FillDisk {
                    free: [0, 16 << 10, 1 << 20, 8 << 20]
                        .choose(&mut self.rng)
                        .copied()
                        .unwrap_or(0),
                    lasts: self.ms(500, 8000),
                },
                _ => Deed::Rest { lasts: self.ms(3000, 9000) },
            };
            match deed {
                Deed::KillAgent { .. } if !can.kill_agent => {}
                Deed::FillDisk { .. } if !can.fill_disk => {}
                deed => return deed,
            }
        }
    }

    /// The fail points of the waker's next start, in the form that it reads. Half of the
    /// starts have none.
    pub(crate) fn fail_points(&mut self, points: &[&str]) -> Vec<String> {
        if points.is_empty() || self.rng.random_bool(0.5) {
            return Vec::new();
        }
        let many = self.rng.random_range(1..=3);
        let chosen: Vec<_> = points.sample(&mut self.rng, many).copied().collect();
        chosen.into_iter().map(|point| format!("{point}={}", self.failure())).collect()
    }

    fn failure(&mut self) -> String {
        let kinds = [("kill", 3), ("enospc", 2), ("eio", 2), ("erofs", 1)];
        let kind = kinds.choose_weighted(&mut self.rng, |(_, weight)| *weight);
        let kind = kind.map_or("kill", |(kind, _)| kind);
        let percent = [10, 30, 100].choose(&mut self.rng).copied().unwrap_or(100);
        match self.rng.random_range(0..3) {
            0 => format!("{percent}%return({kind})"),
            1 => format!("1*return({kind})"),
            _ => format!("{percent}%2*return({kind})"),
        }
    }

    /// How long an app has visitors, and how long it then has none.
    pub(crate) fn stretch(&mut self) -> [Duration; 2] {
        [self.ms(500, 9000), self.ms(0, 9000)]
    }

    /// How long it is until the next visitor of all, when `rate` come in a second: an open loop's
    /// arrivals know nothing of each other.
    pub(crate) fn arrival(&mut self, rate: f64) -> Duration {
        let uniform: f64 = self.rng.random_range(f64::EPSILON..1.0);
        Duration::from_secs_f64((-uniform.ln() / rate).min(10.0))
    }

    /// The next visit to one of `apps`, which is not empty.
    pub(crate) fn visit(&mut self, apps: &[usize], can: Can) -> Option<Plan> {
        let app = *apps.choose(&mut self.rng)?;
        let ask = loop {
            let ask = match self.rng.random_range(0..100) {
                0..30 => Ask::Counter,
                30..58 => {
                    self.entries += 1;
                    Ask::Append(format!("e{}", self.entries))
                }
                58..72 => Ask::Head,
                72..76 => Ask::Log,
                76..90 => Ask::Page,
                90..96 => Ask::Drip {
                    bytes: self.rng.random_range(1..=40),
                    every_ms: self.rng.random_range(1..=50),
                },
                _ => Ask::Socket(self.rng.random_range(1..=10)),
            };
            if can.log || !matches!(ask, Ask::Append(_) | Ask::Head | Ask::Log) {
                break ask;
            }
        };
        let leaves = self.rng.random_bool(0.1).then(|| self.ms(0, 1500));
        Some(Plan { app, ask, leaves })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::mem::discriminant;

    use super::*;

    const ALL: Can = Can { kill_agent: true, fill_disk: true, log: true };
    const NONE: Can = Can { kill_agent: false, fill_disk: false, log: false };

    /// What the two dice of a seed say, thrown in turns or one after the other.
    fn thrown(seed: u64, turns: bool) -> Vec<String> {
        let [mut deeds, mut visits] = Dice::pair(seed, 2);
        let mut said = Vec::new();
        for _ in 0..50 {
            said.push(format!("{:?} {:?}", deeds.pause(), deeds.deed(ALL)));
            said.push(format!("{:?}", deeds.fail_points(&["a", "b"])));
            if turns {
                visits.visit(&[0, 1], ALL).unwrap();
                visits.arrival(5.0);
                visits.stretch();
            }
        }
        said
    }

    #[test]
    fn a_seed_decides_everything() {
        assert_eq!(thrown(7, false), thrown(7, false));
        assert_ne!(thrown(7, false), thrown(8, false));
        assert_eq!(thrown(7, false), thrown(7, true), "visits do not disturb deeds");
    }

    #[test]
    fn every_deed_comes_and_none_that_can_not_be_done() {
        let [mut dice, _] = Dice::pair(1, 2);
        let kinds = |dice: &mut Dice, can| {
            (0..2000).map(|_| discriminant(&dice.deed(can))).collect::<HashSet<_>>().len()
        };
        assert_eq!(kinds(&mut dice, ALL), 13);
        assert_eq!(kinds(&mut dice, NONE), 11);
    }

    #[test]
    fn every_visit_comes_and_each_entry_once() {
        let [_, mut dice] = Dice::pair(1, 2);
        let plans: Vec<_> = (0..2000).map(|_| dice.visit(&[0, 1], ALL).unwrap()).collect();
        let words: HashSet<_> = plans.iter().map(|plan| plan.ask.word()).collect();
        assert_eq!(words.len(), 7);
        let entries: Vec<_> =
            plans.iter().filter(|plan| matches!(plan.ask, Ask::Append(_))).collect();
        let different: HashSet<_> = entries.iter().map(|plan| format!("{:?}", plan.ask)).collect();
        assert_eq!(different.len(), entries.len());
        assert!(plans.iter().any(|plan| plan.leaves.is_some()));

        let without = (0..2000).map(|_| dice.visit(&[1], NONE).unwrap());
        let words: HashSet<_> = without.map(|plan| (plan.app, plan.ask.word())).collect();
        assert_eq!(words.len(), 4);
        assert_eq!(dice.visit(&[], ALL), None);
    }

    #[test]
    fn fail_points_are_written_as_they_are_read() {
        let [mut dice, _] = Dice::pair(1, 2);
        let starts: Vec<_> = (0..500).map(|_| dice.fail_points(&["a::b", "c"])).collect();
        assert!(starts.iter().any(Vec::is_empty));
        for point in starts.iter().flatten() {
            let (name, action) = point.split_once('=').unwrap();
            assert!(["a::b", "c"].contains(&name), "{point}");
            let (times, kind) = action.split_once("return(").unwrap();
            assert!(["kill)", "enospc)", "eio)", "erofs)"].contains(&kind), "{point}");
            assert!(times.ends_with(['%', '*']), "{point}");
        }
        for start in starts {
            let names: HashSet<_> = start.iter().map(|p| p.split_once('=').unwrap().0).collect();
            assert_eq!(names.len(), start.len(), "each point once: {start:?}");
        }
        assert!(dice.fail_points(&[]).is_empty());
    }
}

//! What the world does when the lifecycle tells it to, how that ends, and what it must never be told.

use super::world::{Doing, Facts, Memory, Move, Seen, Told, Vm, World};
use super::*;

impl World {
    /// What is being done comes to its end.
    pub(super) fn finish(&mut self, way: u8) -> Option<Event> {
        let facts = &mut self.facts;
        let result = if way == 0 { Ok(()) } else { Err("failed".to_owned()) };
        let event = match (facts.doing?, way) {
            (Doing::Wake(start), 0) => {
                facts.wake(start);
                Event::Woken(WakeEnd::Ready(self.app.generation().next()))
            }
            (Doing::Wake(_), 1) => Event::Woken(WakeEnd::Failed("failed".into())),
            (Doing::Wake(_), 2) => {
                facts.image = None;
                Event::Woken(WakeEnd::Failed("failed".into()))
            }
            (Doing::Wake(_), 3) => Event::Woken(WakeEnd::Unable),
            (Doing::Pause, 0..=3) => {
                facts.vm = [Vm::Still, Vm::Running, Vm::Still, Vm::Dead][usize::from(way)];
                Event::Stopped(result)
            }
            (Doing::Save, 0..=2) => {
                facts.saved = way == 0;
                facts.vm = if way == 2 { Vm::Dead } else { Vm::Still };
                Event::Saved(result)
            }
            // Nothing sets going what has ended.
            (Doing::Resume, 0) if facts.vm == Vm::Dead => return None,
            (Doing::Resume, 0..=1) => {
                facts.vm = if way == 0 { Vm::Running } else { Vm::Dead };
                Event::Resumed(result)
            }
            (Doing::Commit, 0..=1) => {
                facts.gone();
                facts.image = (way == 0).then_some(facts.memory);
                Event::Committed(result)
            }
            (Doing::End, 0) => {
                facts.gone();
                Event::Ended
            }
            _ => return None,
        };
        facts.doing = None;
        Some(event)
    }

    /// The waker is gone, with all who wait and all that went on in it; another adopts what is there,
    /// and looks after it at once.
    pub(super) fn restart(&mut self, way: u8) -> Option<Event> {
        let facts = &mut self.facts;
        let mut generation = self.app.generation();
        match (facts.doing, way) {
            (_, 0) => {}
            (Some(Doing::Wake(_)), 1) => facts.image = None,
            (Some(Doing::Wake(start)), 2) => {
                generation = generation.next();
                facts.wake(start);
            }
            (Some(Doing::Pause), 1) => facts.vm = Vm::Still,
            (Some(Doing::Resume), 1) if facts.vm == Vm::Still => facts.vm = Vm::Running,
            (Some(Doing::Commit | Doing::End), 1) => facts.gone(),
            (Some(Doing::Commit), 2) => {
                facts.gone();
                facts.image = Some(facts.memory);
            }
            _ => return None,
        }
        // Memory that nobody published is lost with its VM.
        if facts.vm == Vm::Dead {
            facts.gone();
        }
        let Facts { vm, memory, image, .. } = *facts;
        *facts = Facts { vm, memory, image, ..Facts::NOTHING };
        self.flushes.clear();
        self.settles.clear();
        let standing = self.app.standing();
        self.app = match vm {
            Vm::Running => Lifecycle::awake(LIMITS, generation, standing),
            Vm::Still => Lifecycle::paused(LIMITS, generation, standing, self.now),
            _ => Lifecycle::asleep(LIMITS, generation, standing),
        };
        Some(Event::Tick)
    }

    fn begin(&mut self, seen: &mut Seen, doing: Doing) {
        assert_eq!(self.facts.doing, None, "two things done at once");
        self.facts.doing = Some(doing);
        self.facts.flushing = false;
        seen.began = Some(doing);
    }

    pub(super) fn carry_out(&mut self, what: Move, seen: &mut Seen, effect: Effect) {
        let Facts { vm, memory, image, saved, settle, .. } = self.facts;
        match effect {
            Effect::StartWake(start) => {
                assert_eq!(vm, Vm::None, "a second VM");
                let spoilt = image == Some(Memory::Spoilt);
                assert!(!spoilt || start != Start::Restore, "spoilt memory is restored");
                self.begin(seen, Doing::Wake(start));
            }
            Effect::Flush { sleep } => {
                assert_eq!((vm, self.facts.doing), (Vm::Running, None), "flushed by nobody");
                assert!(!self.flushes.contains(&sleep), "a number is used twice");
                self.flushes.push(sleep);
                self.facts.flushing = true;
                seen.flush = true;
            }
            Effect::Pause => {
                assert_eq!(vm, Vm::Running, "stopped without running");
                self.begin(seen, Doing::Pause);
            }
            Effect::Save => {
                assert_eq!(vm, Vm::Still, "saved while it runs");
                self.begin(seen, Doing::Save);
            }
            Effect::Settle { sleep } => {
                assert!(saved && vm == Vm::Still, "settled without a device state");
                assert!(!self.settles.contains(&sleep), "a number is used twice");
                self.settles.push(sleep);
                self.facts.settle = Some(false);
                seen.settle = true;
            }
            Effect::Resume => {
                assert_ne!(vm, Vm::None, "nothing to resume");
                self.facts.saved = false;
                self.facts.settle = None;
                self.begin(seen, Doing::Resume);
            }
            Effect::Commit => {
                assert!(matches!(vm, Vm::Still | Vm::Dead), "published while it runs");
                assert!(saved && settle == Some(true), "published before it was whole");
                self.begin(seen, Doing::Commit);
            }
            Effect::Discard => {
                assert_eq!(self.facts.doing, None, "taken from under what is being done");
                assert_eq!(vm, Vm::Dead, "a VM that lives was thrown away");
                self.facts.gone();
                seen.discarded = true;
            }
            Effect::End { flush } => {
                assert!(matches!(vm, Vm::Running | Vm::Still), "nothing to end");
                let whole = vm == Vm::Running && memory == Memory::Good;
                assert!(!flush || whole, "flushed what can't or must not be");
                self.reference.ends(vm, flush);
                self.begin(seen, Doing::End);
            }
            Effect::Parked { .. } => {
                assert_eq!((vm, self.facts.doing), (Vm::None, None), "parked with a VM");
                seen.parked = true;
            }
            Effect::RefuseBoot(_) => {
                assert!(matches!(what, Move::Boot { .. }), "somebody else's boot");
                self.facts.visitors -= 1;
                seen.refused_boot = true;
            }
            Effect::AnswerWakes(answer) => self.answer_wakes(seen, &answer),
            Effect::RefuseSleep(why, _) => {
                let asked = matches!(what, Move::Sleep { .. } | Move::SleepOfOtherLife);
                assert!(asked && seen.refused_sleep.is_none(), "somebody else's sleep");
                self.facts.sleepers -= 1;
                seen.refused_sleep = Some(why);
            }
            Effect::AnswerSleeps(answer) => self.answer_sleeps(seen, answer),
        }
    }

    fn answer_wakes(&mut self, seen: &mut Seen, answer: &WakeAnswer) {
        let Facts { vm, doing, visitors, .. } = self.facts;
        let told = match answer {
            WakeAnswer::Woken => Told::Woken,
            WakeAnswer::Awake => Told::Awake,
            WakeAnswer::Unpaused => Told::Unpaused,
            WakeAnswer::Failed => Told::Failed,
            WakeAnswer::Unable => Told::Unable,
            WakeAnswer::Backoff { retry_after, .. } => {
                assert!(!retry_after.is_zero() && *retry_after <= BACKOFF_MAX, "{retry_after:?}");
                Told::Backoff
            }
            WakeAnswer::Parked { .. } => Told::Parked,
        };
        match told {
            Told::Woken | Told::Awake | Told::Unpaused => {
                assert_eq!((vm, doing), (Vm::Running, None), "sent to a VM that does not run");
            }
            // The VM is still there when it is about to be ended.
            Told::Parked => {}
            _ => assert_eq!((vm, doing), (Vm::None, None), "refused though there is a VM"),
        }
        if visitors > 0 {
            seen.visitors = Some(told);
        }
        self.facts.visitors = 0;
    }

    fn answer_sleeps(&mut self, seen: &mut Seen, answer: Result<Tier, (SleepRefusal, String)>) {
        let Facts { vm, doing, image, sleepers, .. } = self.facts;
        match answer {
            Ok(Tier::Image) => {
                assert!(vm == Vm::None && image.is_some(), "asleep without an image");
            }
            Ok(Tier::Paused) => {
                assert_eq!((vm, doing), (Vm::Still, None), "paused though it runs");
            }
            Err(_) => {}
        }
        if sleepers > 0 {
            seen.sleepers = Some(answer.map_err(|(why, _)| why));
        }
        self.facts.sleepers = 0;
    }

    /// Whether the lifecycle knows where it is.
    pub(super) fn check(&self) {
        let Facts { vm, doing, settle, flushing, image, .. } = self.facts;
        let (goes_on, vms): (bool, &[Vm]) = match self.app.state() {
            State::Asleep | State::Failed { .. } | State::Parked { .. } => {
                (doing.is_none(), &[Vm::None])
            }
            State::Waking => (matches!(doing, Some(Doing::Wake(_))), &[Vm::None]),
            State::Awake | State::Draining { .. } => (doing.is_none(), &[Vm::Running]),
            State::Flushing { .. } => (doing.is_none() && flushing, &[Vm::Running]),
            State::Pausing { .. } => (doing == Some(Doing::Pause), &[Vm::Running]),
            State::Paused { .. } => (doing.is_none() && settle.is_none(), &[Vm::Still]),
            State::Saving { .. } => (doing == Some(Doing::Save), &[Vm::Still]),
            State::Settling { gone: false, .. } => (settle == Some(false), &[Vm::Still]),
            State::Settling { gone: true, .. } => (settle == Some(false), &[Vm::Dead]),
            State::Resuming { .. } => {
                // Running: it could not be stopped. Dead: which only the try tells.
                (doing == Some(Doing::Resume), &[Vm::Still, Vm::Running, Vm::Dead])
            }
            State::Committing { .. } => (doing == Some(Doing::Commit), &[Vm::Still, Vm::Dead]),
            State::Parking { .. } => (doing == Some(Doing::End), &[Vm::Running, Vm::Still]),
        };
        assert!(goes_on && vms.contains(&vm), "{:?} is not so", self.app.state());
        assert!(vm == Vm::None || image.is_none(), "an image is there to be used again");
    }
}

use proptest::prelude::*;

use super::*;

const HEDGING: Hedging = Hedging { floor: Duration::from_millis(100), share: 10 };

fn plan(lengths: &[u64], working_set: usize) -> Plan {
    let mut end = 0;
    let ends = lengths.iter().map(|length| {
        end += length;
        end
    });
    let offsets: Vec<u64> = std::iter::once(0).chain(ends).collect();
    let follows = (0..offsets.len() - 1).map(|frame| frame > 0).collect();
    Plan::new(offsets, follows, working_set, Pace::new(Duration::ZERO), HEDGING)
}

fn land(plan: &mut Plan, ask: &Ask) {
    for frame in ask.frames.clone() {
        if plan.claim(ask.id, frame) {
            plan.written(frame, ask.fault);
        }
    }
    assert_eq!(plan.ended(ask.id, Duration::ZERO), None);
}

#[test]
fn faults_come_first_then_the_working_set_then_the_rest() {
    let mut plan = plan(&[1 << 20; 30], 3);
    plan.need(20);
    let now = Duration::ZERO;
    // The working set by several requests, and alone until it is almost there.
    let mut asks: Vec<_> = std::iter::from_fn(|| plan.next(now)).collect();
    let frames: Vec<_> = asks.iter().map(|ask| ask.frames.clone()).collect();
    assert_eq!(frames, [20..21, 0..1, 1..2, 2..3]);
    assert!(asks[0].fault && !asks[1].fault);
    land(&mut plan, &asks[1]);
    assert_eq!(plan.next(now), None);
    land(&mut plan, &asks[2]);
    assert!(!plan.working_set_is_there());
    asks.extend(std::iter::from_fn(|| plan.next(now)));
    let frames: Vec<_> = asks[4..].iter().map(|ask| ask.frames.clone()).collect();
    assert_eq!(frames, [3..11, 11..19, 19..20]);
    land(&mut plan, &asks[3]);
    assert!(plan.working_set_is_there());
    assert_eq!(plan.next(now).map(|ask| ask.frames), Some(21..29));
}

#[test]
fn a_fault_deep_in_a_long_request_is_asked_for_again_and_a_near_one_is_not() {
    let mut plan = plan(&[1 << 18; 30], 0);
    let now = Duration::ZERO;
    let stream = plan.next(now).unwrap();
    assert_eq!(stream.frames, 0..30);
    plan.need(1);
    assert_eq!(plan.next(now), None);
    plan.need(20);
    let fault = plan.next(now).unwrap();
    assert_eq!((fault.frames.clone(), fault.fault, fault.hedge), (20..21, true, true));
    land(&mut plan, &fault);
    land(&mut plan, &stream);
    assert!(plan.whole_is_there());
    assert_eq!(plan.held(), 0);
}

#[test]
fn a_late_request_is_hedged_once_and_the_first_to_bring_a_frame_writes_it() {
    let mut plan = plan(&[1 << 20; 4], 0);
    let first = plan.next(Duration::ZERO).unwrap();
    assert!(plan.claim(first.id, 0));
    assert_eq!(plan.hedge(Duration::from_millis(99)), None);
    assert_eq!(plan.next_hedge(), Some(Duration::from_millis(100)));
    let hedge = plan.hedge(Duration::from_millis(100)).unwrap();
    assert_eq!((hedge.frames.clone(), hedge.hedge), (1..4, true));
    assert_eq!(plan.hedge(Duration::from_secs(9)), None);
    plan.written(0, false);
    land(&mut plan, &hedge);
    assert!(plan.whole_is_there());
    assert_eq!(plan.useless(), [first.id]);
    assert!(!plan.claim(first.id, 1));
    assert_eq!(plan.ended(first.id, Duration::ZERO), Some(2));
    assert_eq!(plan.held(), 0);
}

#[test]
fn what_a_request_did_not_bring_is_missing_again_and_what_it_brought_is_kept() {
    let mut plan = plan(&[1 << 20; 4], 0);
    let now = Duration::ZERO;
    let first = plan.next(now).unwrap();
    assert!(plan.claim(first.id, 0));
    plan.written(0, false);
    assert!(plan.claim(first.id, 1));
    assert_eq!(plan.ended(first.id, now), Some(2));
    plan.rest(Duration::from_secs(1), false);
    assert_eq!(plan.next(now), None);
    plan.need(3);
    assert_eq!(plan.next(now).unwrap().frames, 3..4);
    assert_eq!(plan.next(Duration::from_secs(1)).unwrap().frames, 2..3);
    // Neither there nor good: another try.
    plan.spoilt(1, false);
    assert_eq!(plan.next(Duration::from_secs(1)).unwrap().frames, 1..2);
}

#[derive(Clone, Debug)]
enum Event {
    Need(usize),
    /// The next frame of one of those on their way comes.
    Come(usize),
    /// One of those claimed is written.
    Written(usize),
    Spoilt(usize),
    Broken(usize),
    Wait(u64),
}

fn any_event() -> impl Strategy<Value = Event> {
    let n = any::<prop::sample::Index>().prop_map(|n| n.index(1000));
    prop_oneof![
        1 => n.clone().prop_map(Event::Need),
        4 => n.clone().prop_map(Event::Come),
        4 => n.clone().prop_map(Event::Written),
        1 => n.clone().prop_map(Event::Spoilt),
        1 => n.prop_map(Event::Broken),
        1 => (0_u64..300).prop_map(Event::Wait),
    ]
}

struct World {
    plan: Plan,
    flights: Vec<(Ask, usize)>,
    claimed: Vec<(usize, bool)>,
    written: Vec<bool>,
    now: Duration,
}

impl World {
    fn ask(&mut self) {
        while let Some(ask) = self.plan.next(self.now) {
            self.fly(ask);
        }
        while let Some(ask) = self.plan.hedge(self.now) {
            self.fly(ask);
        }
    }

    fn fly(&mut self, ask: Ask) {
        let start = ask.frames.start;
        assert!(ask.frames.clone().all(|frame| !self.written[frame]), "asked for what is there");
        self.flights.push((ask, start));
    }

    fn come(&mut self, place: usize) {
        let (ask, next) = &mut self.flights[place];
        let frame = *next;
        *next += 1;
        if self.plan.claim(ask.id, frame) {
            assert!(!self.written[frame] && self.claimed.iter().all(|(other, _)| *other != frame));
            self.claimed.push((frame, ask.fault));
        }
        if *next == ask.frames.end {
            let (ask, _) = self.flights.remove(place);
            assert_eq!(self.plan.ended(ask.id, self.now), None);
        }
    }

    fn write(&mut self, place: usize) {
        let (frame, fault) = self.claimed.remove(place);
        assert!(!std::mem::replace(&mut self.written[frame], true), "written twice");
        self.plan.written(frame, fault);
    }

    fn meet(&mut self, event: &Event) {
        let place = |n: usize, of: usize| (of > 0).then(|| n % of);
        match *event {
            Event::Need(n) => self.plan.need(n % self.written.len()),
            Event::Come(n) => {
                if let Some(at) = place(n, self.flights.len()) {
                    self.come(at);
                }
            }
            Event::Written(n) => {
                if let Some(at) = place(n, self.claimed.len()) {
                    self.write(at);
                }
            }
            Event::Spoilt(n) => {
                if let Some(at) = place(n, self.claimed.len()) {
                    let (frame, fault) = self.claimed.remove(at);
                    self.plan.spoilt(frame, fault);
                }
            }
            Event::Broken(n) => {
                if let Some(at) = place(n, self.flights.len()) {
                    let (ask, _) = self.flights.remove(at);
                    self.plan.ended(ask.id, self.now);
                    self.plan.rest(self.now + Duration::from_millis(50), ask.fault);
                }
            }
            Event::Wait(ms) => self.now += Duration::from_millis(ms),
        }
        self.ask();
        assert!(self.plan.held() <= MOST_HELD + MOST_HELD_BY_FAULTS);
    }
}

proptest! {
    #[test]
    fn in_any_order_of_events_each_frame_is_written_once_and_all_are_in_the_end(
        lengths in prop::collection::vec(1_u64..(4 << 20) + 9, 1..60),
        working_set in 0_usize..70,
        events in prop::collection::vec(any_event(), 0..300),
    ) {
        let frames = lengths.len();
        let plan = plan(&lengths, working_set);
        let written = vec![false; frames];
        let now = Duration::ZERO;
        let mut world = World { plan, flights: Vec::new(), claimed: Vec::new(), written, now };
        for event in &events {
            world.meet(event);
        }
        let mut steps = 0;
        while !world.plan.whole_is_there() {
            for event in [Event::Wait(60), Event::Come(0), Event::Written(0)] {
                world.meet(&event);
            }
            steps += 1;
            prop_assert!(steps < 2000, "it is stuck");
        }
        while !world.flights.is_empty() {
            world.come(0);
        }
        prop_assert_eq!(world.plan.held(), 0);
        prop_assert!(world.written.iter().all(|there| *there));
        prop_assert!(world.plan.working_set_is_there());
    }
}

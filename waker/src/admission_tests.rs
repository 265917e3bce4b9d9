//! Walks the room through random enters, cancels, adoptions and drops beside a model, polling only
//! the futures that were woken, so that a lost wake-up shows as somebody who is not let in.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Move {
    Enter(u64),
    Adopt(u64),
    /// Of those who wait.
    Cancel(usize),
    /// Of those who were woken: before it is polled and learns that.
    CancelWoken(usize),
    /// Of those who hold one.
    DropSeat(usize),
    DropTurn(usize),
    /// The woken ones are polled.
    Poll,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        4 => (0..14_u64).prop_map(Move::Enter),
        1 => (0..8_u64).prop_map(Move::Adopt),
        2 => any::<usize>().prop_map(Move::Cancel),
        1 => any::<usize>().prop_map(Move::CancelWoken),
        3 => any::<usize>().prop_map(Move::DropSeat),
        3 => any::<usize>().prop_map(Move::DropTurn),
        4 => Just(Move::Poll),
    ];
    proptest::collection::vec(one, 0..120)
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

type Entering = Pin<Box<dyn Future<Output = Result<(Seat, Turn), TooLarge>>>>;

struct Waiter {
    number: usize,
    memory_mib: u64,
    future: Entering,
    woken: Arc<Flag>,
}

impl Waiter {
    fn poll(&mut self) -> Poll<Result<(Seat, Turn), TooLarge>> {
        self.woken.0.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.woken));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::SeqCst)
    }
}

/// What must be so: who waits in order, and what the others have.
struct Model {
    budget_mib: u64,
    at_once: usize,
    in_use_mib: u64,
    wakes: usize,
    queue: VecDeque<(usize, u64)>,
    let_in: Vec<usize>,
}

impl Model {
    fn settle(&mut self) {
        while let Some(&(number, memory_mib)) = self.queue.front()
            && self.wakes < self.at_once
            && self.in_use_mib + memory_mib <= self.budget_mib
        {
            self.queue.pop_front();
            self.in_use_mib += memory_mib;
            self.wakes += 1;
            self.let_in.push(number);
        }
    }

    fn lacking(&self) -> u64 {
        let head = self.queue.front();
        head.map_or(0, |(_, mib)| (self.in_use_mib + mib).saturating_sub(self.budget_mib))
    }
}

struct World {
    admission: Admission,
    lacking: watch::Receiver<u64>,
    model: Model,
    waiters: Vec<Waiter>,
    seats: Vec<Seat>,
    turns: Vec<Turn>,
    next: usize,
}

impl World {
    fn new(budget_mib: u64, at_once: usize) -> Self {
        let admission = Admission::new(budget_mib, at_once);
        let lacking = admission.lacking();
        let (queue, let_in) = (VecDeque::new(), Vec::new());
        let model = Model { budget_mib, at_once, in_use_mib: 0, wakes: 0, queue, let_in };
        let (waiters, seats, turns) = (Vec::new(), Vec::new(), Vec::new());
        Self { admission, lacking, model, waiters, seats, turns, next: 0 }
    }

    /// Polls a waiter; who comes in is who the model has let in.
    fn poll(&mut self, at: usize) {
        let number = self.waiters[at].number;
        let let_in = self.model.let_in.iter().position(|n| *n == number);
        match self.waiters[at].poll() {
            Poll::Pending => assert_eq!(let_in, None, "{number} has room and is not let in"),
            Poll::Ready(entered) => {
                let (seat, turn) = entered.unwrap();
                assert_eq!(seat.memory_mib(), self.waiters[at].memory_mib);
                self.model.let_in.remove(let_in.expect("nobody overtakes"));
                self.seats.push(seat);
                self.turns.push(turn);
                self.waiters.remove(at);
            }
        }
    }

    fn poll_woken(&mut self) {
        while let Some(at) = self.waiters.iter().position(Waiter::is_woken) {
            self.poll(at);
        }
        assert!(self.model.let_in.is_empty(), "who was let in was not woken");
    }

    fn cancel(&mut self, at: usize) {
        let gone = self.waiters.remove(at);
        match self.model.let_in.iter().position(|n| *n == gone.number) {
            Some(let_in) => {
                self.model.let_in.remove(let_in);
                self.model.in_use_mib -= gone.memory_mib;
                self.model.wakes -= 1;
            }
            None => self.model.queue.retain(|(number, _)| *number != gone.number),
        }
    }

    fn go(&mut self, step: Move) {
        match step {
            Move::Enter(memory_mib) => {
                let admission = self.admission.clone();
                let future: Entering = Box::pin(async move { admission.enter(memory_mib).await });
                let number = self.next;
                self.next += 1;
                let mut waiter = Waiter { number, memory_mib, future, woken: Arc::default() };
                if memory_mib > self.model.budget_mib {
                    let Poll::Ready(Err(error)) = waiter.poll() else {
                        panic!("an app that never fits is told so at once")
                    };
                    assert_eq!(error.memory_mib, memory_mib);
                    return;
                }
                self.model.queue.push_back((number, memory_mib));
                self.model.settle();
                self.waiters.push(waiter);
                self.poll(self.waiters.len() - 1);
            }
            Move::Adopt(memory_mib) => {
                self.model.in_use_mib += memory_mib;
                self.seats.push(self.admission.adopt(memory_mib));
            }
            Move::Cancel(n) if !self.waiters.is_empty() => self.cancel(n % self.waiters.len()),
            Move::CancelWoken(n) => {
                let woken = self.waiters.iter().enumerate().filter(|(_, w)| w.is_woken());
                let woken: Vec<_> = woken.map(|(at, _)| at).collect();
                if !woken.is_empty() {
                    self.cancel(woken[n % woken.len()]);
                }
            }
            Move::DropSeat(n) if !self.seats.is_empty() => {
                let seat = self.seats.swap_remove(n % self.seats.len());
                self.model.in_use_mib -= seat.memory_mib();
            }
            Move::DropTurn(n) if !self.turns.is_empty() => {
                drop(self.turns.swap_remove(n % self.turns.len()));
                self.model.wakes -= 1;
            }
            Move::Poll => self.poll_woken(),
            Move::Cancel(_) | Move::DropSeat(_) | Move::DropTurn(_) => {}
        }
        self.model.settle();
    }

    fn check(&self) {
        let figures = Figures {
            budget_mib: self.model.budget_mib,
            in_use_mib: self.model.in_use_mib,
            wakes: self.model.wakes,
            waiting: self.model.queue.len(),
        };
        assert_eq!(self.admission.figures(), figures);
        assert_eq!(*self.lacking.borrow(), self.model.lacking());
        assert!(figures.wakes <= self.model.at_once);
    }

    /// Everybody who waits is let in as the others leave, and in the end nothing is taken.
    fn close(mut self) {
        while !self.waiters.is_empty() {
            let before = self.waiters.len();
            self.poll_woken();
            for _ in 0..self.seats.len() {
                self.go(Move::DropSeat(0));
            }
            for _ in 0..self.turns.len() {
                self.go(Move::DropTurn(0));
            }
            self.poll_woken();
            assert!(self.waiters.len() < before, "somebody waits for ever");
        }
        self.seats.clear();
        self.turns.clear();
        let figures = self.admission.figures();
        assert_eq!((figures.in_use_mib, figures.wakes, figures.waiting), (0, 0, 0));
        assert_eq!(*self.lacking.borrow(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_room_is_as_the_model_has_it(
        budget_mib in 0..12_u64, at_once in 1..4_usize, moves in moves(),
    ) {
        let mut world = World::new(budget_mib, at_once);
        for step in moves {
            let before = world.model.in_use_mib;
            world.go(step);
            world.check();
            let grew = world.model.in_use_mib > before;
            let within = world.model.in_use_mib <= budget_mib;
            assert!(within || !grew || matches!(step, Move::Adopt(_)), "over budget by {step:?}");
        }
        world.close();
    }
}

#[tokio::test]
async fn a_big_app_at_the_head_is_not_overtaken() {
    let admission = Admission::new(10, 4);
    let mut lacking = admission.lacking();
    let (first, _turn) = admission.enter(6).await.unwrap();
    let big = admission.enter(8);
    let small = admission.enter(1);
    tokio::pin!(big, small);
    assert!(futures_util::poll!(&mut big).is_pending());
    assert!(futures_util::poll!(&mut small).is_pending(), "it came later");
    assert_eq!(*lacking.borrow_and_update(), 4);

    drop(first);
    let (big, _turn) = big.await.unwrap();
    let (small, _turn) = small.await.unwrap();
    assert_eq!((big.memory_mib(), small.memory_mib()), (8, 1));
    assert_eq!(*lacking.borrow_and_update(), 0);
}

#[tokio::test]
async fn an_overdraft_is_made_good_before_the_next_enters() {
    let admission = Admission::new(10, 4);
    let running = [admission.adopt(8), admission.adopt(8)];
    assert_eq!(admission.figures().in_use_mib, 16);
    let next = admission.enter(4);
    tokio::pin!(next);
    assert!(futures_util::poll!(&mut next).is_pending());
    assert_eq!(*admission.lacking().borrow(), 10);
    let [one, other] = running;
    drop(one);
    assert!(futures_util::poll!(&mut next).is_pending());
    assert_eq!(*admission.lacking().borrow(), 2);
    drop(other);
    let _entered = next.await.unwrap();
}

#[tokio::test]
async fn a_turn_is_waited_for_with_memory_to_spare() {
    let admission = Admission::new(100, 0);
    let (_seat, turn) = admission.enter(1).await.unwrap();
    let next = admission.enter(1);
    tokio::pin!(next);
    assert!(futures_util::poll!(&mut next).is_pending(), "one at a time is the least");
    assert_eq!(*admission.lacking().borrow(), 0, "memory is not what it lacks");
    drop(turn);
    let _entered = next.await.unwrap();
}

#[tokio::test]
async fn an_app_that_never_fits_is_told_so() {
    let error = Admission::new(512, 1).enter(1024).await.unwrap_err();
    assert_eq!(error, TooLarge { memory_mib: 1024, budget_mib: 512 });
    let said = error.to_string();
    assert!(said.contains("1024 MiB") && said.contains("512 MiB"), "{said}");
}

//! Visitors: they come when they come, several a second, whatever became of those before them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rouse_tests::websocket_for;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};
use tokio_util::sync::CancellationToken;

use crate::answer::{Answer, Ask};
use crate::dice::{Dice, Plan};
use crate::world::{App, World};

/// Visitors a second of all apps that have any.
const RATE: f64 = 7.0;
/// The most visits at once. Held visitors of every app that does not wake stay below it.
const MOST: usize = 400;
/// How long a visitor with a WebSocket waits between two messages.
const BETWEEN: Duration = Duration::from_millis(40);

/// Lets visitors come until `done`, and returns when the last has his answer.
pub(crate) async fn come(world: Arc<World>, mut dice: Dice, done: CancellationToken) {
    let mut visits = JoinSet::new();
    let mut stretches: Vec<Stretch> =
        world.apps.iter().map(|_| Stretch::next(&mut dice, Instant::now())).collect();
    let mut next = Instant::now();
    while done.run_until_cancelled(sleep_until(next)).await.is_some() {
        next += dice.arrival(RATE);
        while visits.try_join_next().is_some() {}
        let now = Instant::now();
        for stretch in &mut stretches {
            if now >= stretch.quiet_until {
                *stretch = Stretch::next(&mut dice, now);
            }
        }
        let busy: Vec<usize> =
            (0..stretches.len()).filter(|app| now < stretches[*app].busy_until).collect();
        let Some(plan) = dice.visit(&busy, world.can) else { continue };
        if visits.len() >= MOST {
            world.count("visitors", "not sent: too many at once");
            continue;
        }
        visits.spawn(visit(world.clone(), plan));
    }
    while visits.join_next().await.is_some() {}
}

/// An app has visitors for a while, and then none for a while.
struct Stretch {
    busy_until: Instant,
    quiet_until: Instant,
}

impl Stretch {
    fn next(dice: &mut Dice, now: Instant) -> Self {
        let [busy, quiet] = dice.stretch();
        Self { busy_until: now + busy, quiet_until: now + busy + quiet }
    }
}

async fn visit(world: Arc<World>, plan: Plan) {
    let app = &world.apps[plan.app];
    let word = plan.ask.word();
    match plan.leaves {
        None => {
            ask(&world, app, &plan.ask).await;
        }
        Some(after) => {
            if timeout(after, ask(&world, app, &plan.ask)).await.is_err() {
                world.count("visitors", format!("{word}: hung up"));
            }
        }
    }
}

/// Asks, and tells the ledger what came of it.
pub(crate) async fn ask(world: &World, app: &App, ask: &Ask) -> Answer {
    world.ledger(|ledger, _| ledger.asked(app.name(), ask));
    let began = world.now();
    let answer = match timeout(world.limit, exchange(world, app, ask)).await {
        Ok(answer) => answer,
        Err(_) => Answer::Silence,
    };
    world.count("visitors", format!("{}: {}", ask.word(), answer.word()));
    let told = world.ledger(|ledger, ended| {
        let before = ledger.violations().len();
        ledger.answered(app.name(), ask, began, ended, &answer);
        ledger.violations().get(before).map(|violation| violation.what.clone())
    });
    if let Some(what) = told {
        world.say(format_args!("VIOLATION: {what}"));
    }
    answer
}

async fn exchange(world: &World, app: &App, ask: &Ask) -> Answer {
    let Some(visit) = ask.visit(&app.host) else {
        let Ask::Socket(messages) = ask else { return Answer::Silence };
        return socket(world, app, *messages).await.unwrap_or_else(|error| broken(&error));
    };
    let came = visit.send(world.http).await;
    if let Ok(reply) = &came
        && !reply.header("rouse-wake").is_empty()
    {
        world.count("wakes that visitors met", reply.header("rouse-wake"));
    }
    Answer::read(ask, came)
}

async fn socket(world: &World, app: &App, messages: u32) -> Result<Answer, SocketError> {
    let mut socket = websocket_for(world.http, &app.host, "/ws").await?;
    for n in 0..messages {
        let text = format!("{} {n}", app.host);
        socket.send(Message::text(text.clone())).await?;
        match socket.next().await {
            Some(Ok(Message::Text(heard))) if heard.as_str() == text => {}
            Some(Ok(Message::Close(_))) | None => {
                return Ok(Answer::Cut("the WebSocket ended".into()));
            }
            Some(Ok(other)) => {
                return Ok(Answer::Wrong(format!("{text:?} came back as {other:?}")));
            }
            Some(Err(error)) => return Err(error),
        }
        sleep(BETWEEN).await;
    }
    // The far end may have gone meanwhile; everything was heard.
    let _ = socket.close(None).await;
    Ok(Answer::Right)
}

fn broken(error: &SocketError) -> Answer {
    match error {
        SocketError::Http(response) => {
            let code = response.headers().get("rouse-error").and_then(|code| code.to_str().ok());
            let other = || Answer::Wrong(format!("{} in place of a WebSocket", response.status()));
            code.map_or_else(other, |code| Answer::Error(code.to_owned()))
        }
        SocketError::Io(io) if io.kind() == std::io::ErrorKind::ConnectionRefused => {
            Answer::NoConnection(io.to_string())
        }
        other => Answer::Cut(other.to_string()),
    }
}

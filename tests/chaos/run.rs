//! One run, from the node's start to the summary.

use std::sync::Arc;
use std::time::Duration;

use rouse_tests::{App as AppFile, Binaries, FileSystem, Node, Visit, Volume, VolumeError};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::Args;
use crate::dice::{Can, Dice};
use crate::director::Director;
use crate::points::POINTS;
use crate::summary;
use crate::trouble::At;
use crate::visitors;
use crate::watchers::Watchers;
use crate::world::{App, World, print};

/// How large an app's disk is.
const DISK_MIB: u32 = 64;
/// After how long without visitors an app is paused, and after how long more it is an image.
const IDLE_SECONDS: u64 = 2;
const PAUSED_SECONDS: u64 = 2;
/// How long a visitor is held at most, and how much longer he waits before it counts as silence: his
/// app may take its time when it is let go, on a machine that does everything at once.
const HOLD_SECONDS: u64 = 60;
const PATIENT: Duration = Duration::from_secs(HOLD_SECONDS + 60);
/// How long proxies have to agree to a sleep.
const AGREEMENT_SECONDS: u64 = 5;
/// What the state directory has for each app, and besides. Memory and disk fit, whole.
const APP_MIB: u64 = 512;
const SPARE_MIB: u64 = 256;

/// Runs, and returns whether all held.
pub(crate) async fn run(args: Args) -> bool {
    let seed = args.seed.unwrap_or_else(rand::random);
    print(format_args!("chaos for {} s, seed {seed}, {} apps", args.seconds, args.apps));
    Box::pin(run_seeded(&args, seed)).await
}

async fn run_seeded(args: &Args, seed: u64) -> bool {
    let apps: Vec<App> = (1..=args.apps).map(app).collect();
    // Declared before the node, so that it is unmounted after it when the start panics.
    let (volume, node) = start(args, &apps).await;
    let can = Can {
        kill_agent: can_kill_agent(&node, &apps[0]).await,
        fill_disk: volume.is_some(),
        log: !args.without_disk,
    };
    if !can.kill_agent {
        print(format_args!("skipped: kill -9 of the agent: the guest has no way to be told"));
    }
    if POINTS.is_empty() {
        print(format_args!("skipped: fail points: this waker has none"));
    }
    let [deeds, visits] = Dice::pair(seed, apps.len());
    let world = Arc::new(World::new(&node, apps, can, PATIENT));
    let watchers = Watchers::start(&world, volume.is_some());
    let points = POINTS.iter().map(|point| (*point).to_owned()).collect();
    let mut director = Director::new(world.clone(), deeds, points, node, volume);

    let mut visitors = JoinSet::new();
    let done = CancellationToken::new();
    visitors.spawn(visitors::come(world.clone(), visits, done.clone()));
    director.direct(At::from_secs(args.seconds)).await;
    done.cancel();
    director.mend(&mut visitors).await;

    if !watchers.look_on() {
        world.violated("who was to look on has ended".into());
    }
    let looks = watchers.looks();
    drop(watchers);
    director.end().await;
    summary::print(&world, &director, args.seconds, seed, looks)
}

fn app(n: u8) -> App {
    let id = format!("app{n}");
    App { host: format!("{id}.localhost"), id: id.parse().expect("letters and digits are an id") }
}

async fn start(args: &Args, apps: &[App]) -> (Option<Volume>, Node) {
    let binaries = Binaries::find();
    let builder = Node::builder(&binaries);
    let mib = APP_MIB * u64::from(args.apps) + SPARE_MIB;
    let volume = volume(builder.root(), mib);
    let builder = builder.waker(|waker| {
        if let Some(volume) = &volume {
            waker.state_dir = volume.path().to_owned();
        }
        waker.sleep.agreement_seconds = AGREEMENT_SECONDS;
    });
    let builder = apps.iter().fold(builder, |builder, app| {
        let mut file = AppFile::hello(&binaries).cold();
        if !args.without_disk {
            file = file.disk(DISK_MIB).paused(PAUSED_SECONDS);
        }
        file.id = app.id.to_string();
        file.hosts = vec![app.host.clone()];
        file.sleep.idle_seconds = IDLE_SECONDS;
        file.gate.hold_deadline_seconds = HOLD_SECONDS;
        builder.app(file)
    });
    let node = Box::pin(builder.start()).await;
    (volume, node)
}

fn volume(root: &std::path::Path, mib: u64) -> Option<Volume> {
    let made: Result<Volume, VolumeError> = Volume::make(root, FileSystem::Ext4, mib);
    match made {
        Ok(volume) => Some(volume),
        Err(why) => {
            print(format_args!("skipped: full disk: no file system of our own: {why}"));
            None
        }
    }
}

/// Whether the guest ends its agent when it is asked to: it does when it can.
async fn can_kill_agent(node: &Node, app: &App) -> bool {
    let ask = async {
        // A visitor is held until the guest has booted; it then is awake, unless it has fallen
        // asleep again on a machine that is busy.
        Visit::get("/").host(&app.host).send(node.http()).await.ok()?;
        let views = node.client().apps().await.ok()?;
        let view = views.into_iter().find(|view| view.id == app.id)?;
        let endpoint = view.state.ready()?.endpoint;
        let reply = Visit::get("/crash?what=agent").send(endpoint).await.ok()?;
        if reply.status != 202 {
            return Some(false);
        }
        // It has; nobody is to meet what this did.
        let mut well = 0;
        while well < 5 {
            let reply = Visit::get("/").host(&app.host).send(node.http()).await;
            well = if reply.is_ok_and(|reply| reply.status == 200) { well + 1 } else { 0 };
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Some(true)
    };
    timeout(PATIENT, ask).await.ok().flatten().unwrap_or(false)
}

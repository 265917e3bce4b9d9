//! What each deed is.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rouse_tests::{Visit, Vm, patience, vmms_of};
use tokio::time::{sleep, timeout};

use crate::dice::Deed;
use crate::director::{Director, Later, Program, SHORT, TICK};
use crate::operators;
use crate::trouble::Trouble;

/// How long a guest on a busy machine may take to come to what it was asked.
const GUEST: Duration = Duration::from_secs(30);

impl Director {
    /// Does it. What takes long goes on while the next deed is done.
    pub(crate) async fn carry_out(&mut self, deed: Deed) {
        let world = self.world.clone();
        world.say(format_args!("> {}", self.told(&deed)));
        match deed {
            Deed::Sleep { app, tier } => {
                self.calls.spawn(operators::sleep(world, app, tier));
            }
            Deed::Wake { app } => {
                self.calls.spawn(operators::wake(world, app));
            }
            Deed::Boot { app } => {
                self.calls.spawn(operators::boot(world, app));
            }
            Deed::Park { app, lasts } => {
                self.calls.spawn(operators::park(world, app));
                self.after(lasts, Later::Clear(app));
            }
            Deed::KillWaker { away } => self.kill_waker(away),
            Deed::StopWaker { away } => self.stop_waker(away).await,
            Deed::KillProxy { away } => self.kill_proxy(away),
            Deed::KillVmm { app } => self.kill_vmm(app),
            Deed::KillAgent { app } => self.in_guest(app, "/crash?what=agent", "agent").await,
            Deed::CrashApp { app, away } => {
                let crash = format!("/crash?down_ms={}", away.as_millis());
                self.in_guest(app, &crash, "app's process").await;
            }
            Deed::Reboot { away: [waker, proxy] } => self.reboot(waker, proxy),
            Deed::FillDisk { free, lasts } => self.fill_disk(free, lasts),
            Deed::Rest { .. } => {}
        }
    }

    fn told(&self, deed: &Deed) -> String {
        let name = |app: &usize| self.world.apps[*app].name();
        match deed {
            Deed::Sleep { app, tier } => format!("sleep ({}) of {}", tier.as_str(), name(app)),
            Deed::Wake { app } => format!("wake of {}", name(app)),
            Deed::Boot { app } => format!("boot of {}", name(app)),
            Deed::Park { app, lasts } => format!("park of {} for {lasts:?}", name(app)),
            Deed::KillWaker { away } => format!("kill -9 of the waker for {away:?}"),
            Deed::StopWaker { away } => format!("stop of the waker for {away:?}"),
            Deed::KillProxy { away } => format!("kill -9 of the proxy for {away:?}"),
            Deed::KillVmm { app } => format!("kill -9 of the VMM of {}", name(app)),
            Deed::KillAgent { app } => format!("kill -9 of the agent in {}", name(app)),
            Deed::CrashApp { app, away } => format!("crash of {} for {away:?}", name(app)),
            Deed::Reboot { away: [waker, proxy] } => {
                format!("kill -9 of everything; waker back in {waker:?}, proxy in {proxy:?}")
            }
            Deed::FillDisk { free, lasts } => {
                format!("disk full but for {} KiB for {lasts:?}", free >> 10)
            }
            Deed::Rest { lasts } => format!("rest for {lasts:?}"),
        }
    }

    pub(crate) fn kill_waker(&mut self, away: Duration) {
        if self.waker == Program::Down {
            return;
        }
        self.waker_goes();
        self.node.waker.kill();
        self.world.count("faults", "waker");
        self.after(away, Later::StartWaker);
    }

    async fn stop_waker(&mut self, away: Duration) {
        if self.waker == Program::Down || !self.node.waker.runs() {
            return;
        }
        self.waker_goes();
        let limit = patience();
        self.node.waker.signal(Signal::SIGTERM);
        let stopped = timeout(limit, async {
            while self.node.waker.runs() {
                sleep(TICK).await;
            }
        });
        if stopped.await.is_err() {
            self.world.violated(format!("the waker does not stop in {limit:?}"));
        }
        self.node.waker.kill();
        self.world.count("faults", "waker (SIGTERM)");
        self.after(away, Later::StartWaker);
    }

    pub(crate) fn waker_goes(&mut self) {
        self.world.begin(Trouble::Waker);
        self.waker = Program::Down;
    }

    fn kill_proxy(&mut self, away: Duration) {
        if self.proxy == Program::Down {
            return;
        }
        self.world.begin(Trouble::Proxy);
        self.proxy = Program::Down;
        self.node.proxy.kill();
        self.world.count("faults", "proxy");
        self.after(away, Later::StartProxy);
    }

    fn kill_vmm(&mut self, app: usize) {
        let name = self.world.apps[app].name();
        let Some(vm) = Vm::recorded_in(&self.node.app_dir(name).join("run.json")) else {
            self.world.say(format_args!("{name} has no VMM"));
            return;
        };
        let trouble = Trouble::Vm(name.to_owned());
        self.world.begin(trouble.clone());
        vm.kill();
        self.world.end(&trouble);
        self.world.count("faults", "VMM");
    }

    /// Asks the app in its VM to end something there.
    async fn in_guest(&mut self, app: usize, path: &str, what: &'static str) {
        let name = self.world.apps[app].name().to_owned();
        let endpoint = self.apps().await.into_iter().flatten().find_map(|view| {
            (view.id.as_str() == name).then(|| view.state.ready().map(|ready| ready.endpoint))?
        });
        let Some(endpoint) = endpoint else {
            self.world.say(format_args!("{name} is not awake"));
            return;
        };
        let trouble = Trouble::Vm(name);
        self.world.begin(trouble.clone());
        // It may be gone before it answers.
        let told = timeout(SHORT, Visit::get(path).send(endpoint)).await;
        if !matches!(told, Ok(Ok(ref reply)) if reply.status == 400 || reply.status == 404) {
            self.world.count("faults", what);
        }
        match told {
            Ok(_) => self.world.end(&trouble),
            // A busy guest does it when it comes to it.
            Err(_elapsed) => self.after(GUEST, Later::GuestDone(app)),
        }
    }

    pub(crate) fn reboot(&mut self, waker_away: Duration, proxy_away: Duration) {
        let world = self.world.clone();
        world.begin(Trouble::Waker);
        world.begin(Trouble::Proxy);
        let vms = || world.apps.iter().map(|app| Trouble::Vm(app.name().to_owned()));
        vms().for_each(|trouble| world.begin(trouble));
        (self.waker, self.proxy) = (Program::Down, Program::Down);
        // All at once: nobody is to see another's end and act on it.
        let programs = [&mut self.node.waker, &mut self.node.proxy];
        let programs: Vec<i32> = programs
            .into_iter()
            .filter_map(|program| program.runs().then(|| i32::try_from(program.pid()).ok())?)
            .collect();
        let vmms = vmms_of(&world.root);
        for pid in programs.into_iter().chain(vmms.iter().map(|vm| vm.pid)) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        self.node.waker.kill();
        self.node.proxy.kill();
        // The waker may have started one after we looked.
        vmms.iter().chain(&vmms_of(&world.root)).for_each(Vm::kill);
        vms().for_each(|trouble| world.end(&trouble));
        world.count("faults", "everything");
        self.after(waker_away, Later::StartWaker);
        self.after(proxy_away, Later::StartProxy);
    }

    fn fill_disk(&mut self, free: u64, lasts: Duration) {
        let Some(volume) = &self.volume else { return };
        self.world.begin(Trouble::FullDisk);
        if let Err(error) = volume.fill(free) {
            self.world.say(format_args!("the disk can't be filled: {error}"));
        }
        self.world.count("faults", "disk full");
        self.after(lasts, Later::EmptyDisk);
    }
}

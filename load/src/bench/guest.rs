//! The test guest, and a node with an app in it.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use rouse_tests::{App, Binaries, DEFAULT_HOST, Node};

use crate::machine;
use crate::visit::{Woken, visit};

#[derive(Debug, clap::Args)]
pub(crate) struct Guest {
    /// The directory of the guest's vmlinuz and initrd.cpio.gz; `guest` beside the binaries'
    /// directory unless given.
    #[arg(long)]
    guest: Option<PathBuf>,
    /// The accelerator: auto, kvm or tcg; what ROUSE_ACCEL says, or else auto, unless given.
    #[arg(long)]
    accel: Option<String>,
}

impl Guest {
    /// What VMs run on.
    pub(crate) fn accelerator(&self) -> String {
        let named = self.accel.clone().or_else(|| std::env::var("ROUSE_ACCEL").ok());
        named.unwrap_or_else(|| "auto".into())
    }

    /// Everything that a node is made of. An error names what is missing.
    pub(crate) fn find(&self) -> anyhow::Result<Binaries> {
        let dir = machine::bench_dir()?;
        let guest = match &self.guest {
            Some(guest) => guest.clone(),
            None => dir.parent().context("the binaries' directory has a parent")?.join("guest"),
        };
        machine::installed("qemu-system-x86_64")?;
        for name in ["rouse-waker", "rouse-proxy"] {
            machine::beside(name)?;
        }
        for part in ["vmlinuz", "initrd.cpio.gz"].map(|part| guest.join(part)) {
            ensure!(part.is_file(), "{} is missing; `./dev bench` builds it", part.display());
        }
        Ok(Binaries::at(dir, guest))
    }

    /// A node whose app `hello` has booted, and the visit that it booted for. It made its page
    /// twice: what an app does only once is no business of a benchmark.
    pub(crate) async fn booted(&self, binaries: &Binaries) -> anyhow::Result<(Node, Woken)> {
        self.booted_as(binaries, App::hello(binaries)).await
    }

    /// [`Self::booted`], of an app `hello` that is described otherwise.
    pub(crate) async fn booted_as(
        &self,
        binaries: &Binaries,
        app: App,
    ) -> anyhow::Result<(Node, Woken)> {
        let accelerator = self.accelerator();
        let node = Node::builder(binaries)
            .app(app.cold())
            .waker(|waker| waker.qemu.accelerator = accelerator)
            .without_slot()
            .start()
            .await;
        let woken = visit(node.http(), DEFAULT_HOST, "/").await.context("the first boot")?;
        node.get("/").await.expect_status(200);
        Ok((node, woken))
    }
}

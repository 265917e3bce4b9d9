//! What the gate needs of the world, as traits, so that a test can be the world.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::client::{Client, ClientError, Lines};
use rouse_protocol::wake::{Agreement, Served, SleepReport, SleepRequest, WakeEvent};
use rouse_protocol::watch::WatchEvent;
use tokio::time::Instant;

use crate::verdict::Heard;

/// A stream of the waker's. Dropping it hangs up, which cancels nothing.
#[async_trait]
pub trait Events<T>: Send {
    /// The next event, or none at the stream's end. Cancel-safe.
    async fn next(&mut self) -> Result<Option<T>, ClientError>;
}

/// The waker.
#[async_trait]
pub trait Waker: Send + Sync + 'static {
    /// Wakes `app`, or joins the wake that runs.
    async fn wake(&self, app: &AppId) -> Result<Box<dyn Events<WakeEvent>>, ClientError>;
    /// Proposes that `app` sleep; returns when it does, or why not.
    async fn sleep(&self, app: &AppId, request: &SleepRequest) -> Result<SleepReport, ClientError>;
    /// Says whether a draining `app` may sleep as far as this proxy goes.
    async fn agree(&self, app: &AppId, agreement: &Agreement) -> Result<(), ClientError>;
    /// Tells that the first byte of an answer has gone out since `app`'s last wake.
    async fn served(&self, app: &AppId, served: &Served) -> Result<(), ClientError>;
    /// Every app, then every change, as the proxy `name`.
    async fn watch(&self, name: &str) -> Result<Box<dyn Events<WatchEvent>>, ClientError>;
}

#[async_trait]
impl Events<WakeEvent> for Lines<WakeEvent> {
    async fn next(&mut self) -> Result<Option<WakeEvent>, ClientError> {
        Lines::next(self).await
    }
}

#[async_trait]
impl Events<WatchEvent> for Lines<WatchEvent> {
    async fn next(&mut self) -> Result<Option<WatchEvent>, ClientError> {
        Lines::next(self).await
    }
}

#[async_trait]
impl Waker for Client {
    async fn wake(&self, app: &AppId) -> Result<Box<dyn Events<WakeEvent>>, ClientError> {
        Ok(Box::new(Client::wake(self, app).await?))
    }

    async fn sleep(&self, app: &AppId, request: &SleepRequest) -> Result<SleepReport, ClientError> {
        Client::sleep(self, app, request).await
    }

    async fn agree(&self, app: &AppId, agreement: &Agreement) -> Result<(), ClientError> {
        Client::agree(self, app, agreement).await
    }

    async fn served(&self, app: &AppId, served: &Served) -> Result<(), ClientError> {
        Client::served(self, app, served).await
    }

    async fn watch(&self, name: &str) -> Result<Box<dyn Events<WatchEvent>>, ClientError> {
        Ok(Box::new(Client::watch(self, Some(name)).await?))
    }
}

/// One question to an app: a bodiless `GET`.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Where the app is reached.
    pub endpoint: SocketAddr,
    /// Its `Host`.
    pub host: String,
    /// The path.
    pub path: String,
    /// The value of `Rouse-Nonce`, fresh for each probe.
    pub nonce: String,
    /// How long there may be no byte before it is given up.
    pub patience: Duration,
}

/// Asks an app whether it is there.
#[async_trait]
pub trait Prober: Send + Sync + 'static {
    /// What was heard, and when its first byte came.
    async fn probe(&self, probe: &Probe) -> (Heard, Option<Instant>);
}

/// The pooled connections to one life of one app.
pub trait Upstream: Any + Send + Sync {
    /// Shuts every connection of this life down, pooled or busy or just being made. Called before
    /// the VM stops, so that nothing lies in a pool when it comes back.
    fn shut(&self);
}

/// Makes [`Upstream`]s.
pub trait Dialer: Send + Sync + 'static {
    /// The connections to `app` at `endpoint` in this life. None of an earlier one's may be used.
    fn upstream(
        &self,
        app: &AppId,
        endpoint: SocketAddr,
        generation: Generation,
    ) -> Arc<dyn Upstream>;
}

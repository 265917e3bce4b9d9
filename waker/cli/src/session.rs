//! One command's way to the waker.

use rouse_protocol::app::AppId;
use rouse_protocol::client::{Client, ClientError};
use rouse_waker::config::read_waker;

use crate::args::Args;
use crate::failure::Failure;
use crate::output::Output;

/// How much of an id may be wrong for another to be meant: strsim's similarity, from 0 to 1.
const ALIKE: f64 = 0.75;

/// The waker, and where to tell what it says.
pub(crate) struct Session<'a> {
    pub(crate) client: Client,
    pub(crate) output: &'a Output,
}

impl<'a> Session<'a> {
    /// Finds out where the waker listens. Nothing is opened yet.
    pub(crate) fn open(args: &Args, output: &'a Output) -> Result<Self, Failure> {
        let socket = match &args.socket {
            Some(socket) => socket.clone(),
            None => read_waker(&args.config).map_err(Failure::Config)?.socket.path,
        };
        Ok(Self { client: Client::new(socket), output })
    }

    /// Why a call about `app` failed. For an app that is not there, looks which may have been meant.
    pub(crate) async fn failed(&self, app: &AppId, error: ClientError) -> Failure {
        match &error {
            ClientError::Refused(problem) if problem.code() == "unknown-app" => {
                let known = self.client.apps().await.unwrap_or_default();
                let nearest = nearest(app, known.into_iter().map(|view| view.id));
                Failure::UnknownApp { app: app.clone(), nearest }
            }
            _ => Failure::about(app, error),
        }
    }
}

fn nearest(app: &AppId, known: impl Iterator<Item = AppId>) -> Option<AppId> {
    let alike = |id: AppId| (strsim::jaro_winkler(app.as_str(), id.as_str()), id);
    let best = known.map(alike).max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(likeness, _)| *likeness >= ALIKE).map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_meant() {
        let known = ["hello", "shop", "shop-2"];
        for (typed, meant) in [
            ("helo", Some("hello")),
            ("hlelo", Some("hello")),
            ("shop2", Some("shop-2")),
            ("shp", Some("shop")),
            ("xyz", None),
        ] {
            let known = known.iter().map(|id| id.parse().unwrap());
            let found = nearest(&typed.parse().unwrap(), known);
            assert_eq!(found.as_ref().map(AppId::as_str), meant, "{typed}");
        }
        assert_eq!(nearest(&"a".parse().unwrap(), std::iter::empty()), None);
    }
}

//! Which app a request is for, and which apps there are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderMap;
use rouse_protocol::app::AppId;
use rouse_route::{Changed, Conflict, HostPattern, LiveRoutes, Passed, Routes, Rule};

use crate::app::App;

/// Something that an app claims and does not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unserved {
    /// Who claims it.
    pub app: AppId,
    /// What it is, who has it, and what to do.
    pub why: String,
}

/// All apps of one proxy, and what is routed to them. Origins come first, and stay.
pub(crate) struct Routing {
    origins: Vec<Arc<App>>,
    /// The waker's apps. Never locked over an await, nor by visitors.
    apps: Mutex<HashMap<AppId, Arc<App>>>,
    routes: LiveRoutes<Arc<App>>,
}

impl Routing {
    /// Origins, each with its rules.
    pub(crate) fn new(origins: Vec<(Arc<App>, Vec<Rule>)>) -> Self {
        let this = Self {
            origins: origins.iter().map(|(app, _)| app.clone()).collect(),
            apps: Mutex::default(),
            routes: LiveRoutes::default(),
        };
        this.change(|routes| {
            let origins = origins.into_iter();
            origins.map(|(app, rules)| routes.set(app.id(), rules, app.clone())).collect()
        });
        this
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AppId, Arc<App>>> {
        // Nothing panics under the lock.
        self.apps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whom a request is for.
    pub(crate) fn lookup(&self, host: &str, path: &str, headers: &HeaderMap) -> Option<Arc<App>> {
        self.routes.lookup(host, path, headers)
    }

    pub(crate) fn origins(&self) -> &[Arc<App>] {
        &self.origins
    }

    fn is_origin(&self, id: &AppId) -> bool {
        self.origins.iter().any(|origin| origin.id() == id)
    }

    /// The waker's apps, in no order.
    pub(crate) fn apps(&self) -> Vec<Arc<App>> {
        self.lock().values().cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// The waker's app of this id.
    pub(crate) fn app(&self, id: &AppId) -> Option<Arc<App>> {
        self.lock().get(id).cloned()
    }

    /// Knows `app`, which nothing is routed to yet.
    pub(crate) fn insert(&self, app: &Arc<App>) {
        if self.is_origin(app.id()) {
            tracing::warn!("{}", taken(app.id()));
        }
        self.lock().insert(app.id().clone(), app.clone());
    }

    /// The name that an app is asked by.
    pub(crate) fn host_of(&self, id: &AppId) -> Option<String> {
        let exact = |rule: &Rule| match &rule.host {
            HostPattern::Exact(host) => Some(host.as_str().to_owned()),
            HostPattern::Wildcard(_) | HostPattern::Any => None,
        };
        self.routes.change(|routes| routes.rules(id)?.iter().find_map(exact))
    }

    /// Forgets the waker's apps that `gone` is true of, and returns them. What is routed to them still is.
    pub(crate) fn take(&self, mut gone: impl FnMut(&AppId) -> bool) -> Vec<Arc<App>> {
        self.lock().extract_if(|id, _| gone(id)).map(|(_, app)| app).collect()
    }

    /// Routes nothing to those who are `gone` any more, and to others by the rules that were `told`.
    /// Visitors see all of it at once.
    pub(crate) fn update(
        &self,
        gone: &[Arc<App>],
        told: impl IntoIterator<Item = (Arc<App>, Vec<Rule>)>,
    ) {
        // An origin's id is the origin's. An app that has it is known all the same, and may sleep.
        let ours = |app: &Arc<App>| !self.is_origin(app.id());
        self.change(|routes| {
            let gone = gone.iter().filter(|app| ours(app));
            let mut changed: Vec<_> = gone.map(|app| routes.remove(app.id())).collect();
            for (app, rules) in told.into_iter().filter(|(app, _)| ours(app)) {
                // Most of what is told of an app is about something else.
                if routes.rules(app.id()) != Some(&*rules) {
                    changed.push(routes.set(app.id(), rules, app.clone()));
                }
            }
            changed
        });
    }

    fn change(&self, change: impl FnOnce(&mut Routes<Arc<App>>) -> Vec<Changed>) {
        for Changed { conflicts, passed } in self.routes.change(change) {
            for conflict in conflicts {
                tracing::warn!(app = %conflict.app, "{conflict}");
            }
            for Passed { rule, from, to } in passed {
                tracing::info!(app = %to, "{rule} has passed to it from {from}");
            }
        }
    }

    /// What `app` claims, as text.
    pub(crate) fn rules(&self, app: &AppId) -> Vec<String> {
        let text = |rules: &[Rule]| rules.iter().map(Rule::to_string).collect();
        self.routes.change(|routes| routes.rules(app).map(text)).unwrap_or_default()
    }

    /// What apps claim in vain. Goes through all rules.
    pub(crate) fn unserved(&self) -> Vec<Unserved> {
        let of = |conflict: Conflict| Unserved { why: conflict.to_string(), app: conflict.app };
        let mut unserved: Vec<_> =
            self.routes.change(|routes| routes.conflicts().map(of).collect());
        let apps = self.lock();
        let ids = self.origins.iter().map(|origin| origin.id());
        let ids = ids.filter(|id| apps.contains_key(*id));
        unserved.extend(ids.map(|id| Unserved { app: id.clone(), why: taken(id) }));
        unserved
    }
}

fn taken(id: &AppId) -> String {
    format!(
        "{id} of the waker has the id of an origin of this proxy, and is not served here; give one of them another"
    )
}

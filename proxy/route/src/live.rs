//! The shell: routes that change while requests are routed by them.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};
use http::HeaderMap;

use crate::{RouteTable, Routes};

/// [`Routes`] that are changed by one at a time, and seen by everybody without a lock.
pub struct LiveRoutes<T> {
    routes: Mutex<Routes<T>>,
    seen: ArcSwap<RouteTable<T>>,
}

impl<T> Default for LiveRoutes<T> {
    fn default() -> Self {
        let routes = Routes::default();
        Self { seen: ArcSwap::new(routes.table()), routes: Mutex::new(routes) }
    }
}

impl<T> LiveRoutes<T> {
    /// Makes changes, which requests see all at once when `change` returns. Many in one cost less than
    /// one by one. Others who change anything wait, requests don't.
    pub fn change<R>(&self, change: impl FnOnce(&mut Routes<T>) -> R) -> R {
        // Each change of an app is whole in itself: a panic between two leaves good routes.
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut routes);
        let table = routes.table();
        if !Arc::ptr_eq(&table, &self.seen.load()) {
            self.seen.store(table);
        }
        result
    }

    /// The table as it is now, for a few look-ups. To be let go of soon, and never held over an await.
    pub fn table(&self) -> Guard<Arc<RouteTable<T>>> {
        self.seen.load()
    }

    /// [`RouteTable::lookup`] in the table as it is now.
    pub fn lookup(&self, host: &str, path: &str, headers: &HeaderMap) -> Option<T>
    where
        T: Clone,
    {
        self.seen.load().lookup(host, path, headers).cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rouse_protocol::app::AppId;

    use super::*;
    use crate::Rule;

    fn rule(host: &str) -> Rule {
        Rule::from(host.parse::<crate::HostPattern>().unwrap())
    }

    #[test]
    fn changes_are_seen_whole() {
        let live = LiveRoutes::default();
        let app: AppId = "one".parse().unwrap();
        // What is found says which change it is of: `b` must never be older than `a` was.
        let look = |host| live.lookup(host, "/", &HeaderMap::new());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..2000_u32 {
                    live.change(|routes| {
                        let _ = routes.set(&app, [rule("a")], i);
                        let _ = routes.set(&app, [rule("a"), rule("b")], i);
                    });
                }
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                let table = live.table();
                let at = |host| table.lookup(host, "/", &HeaderMap::new()).copied();
                assert_eq!(at("a"), at("b"));
            }
        });
        assert_eq!((look("a"), look("b"), look("c")), (Some(1999), Some(1999), None));
    }

    #[test]
    fn looking_only_publishes_nothing() {
        let live = LiveRoutes::<u8>::default();
        let before = Arc::clone(&live.table());
        assert!(live.change(|routes| routes.is_empty()));
        assert!(Arc::ptr_eq(&before, &live.table()));
    }
}

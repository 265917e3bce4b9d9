//! The waker's fail points.

/// Where the waker can be made to fail, in a build of it with fail points.
pub(crate) const POINTS: &[&str] =
    if cfg!(feature = "failpoints") { rouse_waker::fault::POINTS } else { &[] };

/// The variable in which the waker reads them at its start.
pub(crate) const VARIABLE: &str = "FAILPOINTS";

/// How often each of the fail points that a waker was started with is told of in its log.
pub(crate) fn hit(log: &str, points: &[String]) -> Vec<(String, u64)> {
    let told = |point: &String| {
        let hits = log.lines().filter(|line| is_hit(line, point)).count();
        (point.clone(), hits as u64)
    };
    points.iter().map(told).filter(|(_, hits)| *hits > 0).collect()
}

fn is_hit(line: &str, point: &str) -> bool {
    // A point's name may be the beginning of another's.
    let goes_on = |c: char| c.is_alphanumeric() || "_-".contains(c);
    let ends = |rest: &str| !rest.starts_with("::") && !rest.starts_with(goes_on);
    line.contains("fail point") && line.split(point).skip(1).any(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_counted_by_name() {
        let log = "INFO fail point publish::rename: kill\nINFO publish::rename done\n\
                   WARN fail point publish::rename-back: enospc\nWARN fail point publish::rename\n";
        let points = ["publish::rename", "publish::rename-back", "other"].map(str::to_owned);
        let hits = [("publish::rename".to_owned(), 2), ("publish::rename-back".to_owned(), 1)];
        assert_eq!(hit(log, &points), hits);
    }
}

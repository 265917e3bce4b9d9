use super::*;

fn parse(text: &str, base: &Path) -> Result<Policies, Vec<String>> {
    let parsed = rouse_conf::parse_text(Path::new("a.toml"), text, |t| Some(read(t, base)));
    parsed.map_err(|refused| refused.to_string().lines().map(str::to_owned).collect())
}

fn refused(text: &str) -> Vec<String> {
    parse(text, Path::new("/nowhere")).unwrap_err()
}

#[test]
fn nothing_is_needed() {
    assert_eq!(parse("", Path::new("/")), Ok(Policies::default()));
    assert_eq!(parse("[wake]\n[waiting]\n", Path::new("/")), Ok(Policies::default()));
}

#[test]
fn the_whole_of_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("robots.txt"), "User-agent: x\n").unwrap();
    std::fs::write(dir.path().join("i.png"), [0, 1, 255]).unwrap();
    std::fs::write(dir.path().join("p.html"), "<p>{{app}}</p>").unwrap();
    let policies = parse(
        r#"
        [wake]
        methods = ["GET", "POST"]
        paths = { allow = ["/*"], deny = ["/wp-*", "/.git/*"] }
        user_agents_deny = ["bot", "curl/*"]
        authenticated = "required"
        credentials = ["authorization", "cookie:session"]
        budget = { wakes = 60, per_seconds = 3600 }
        per_address = { wakes = 10, per_seconds = 3600, burst = 3 }
        robots_file = "robots.txt"
        favicon_file = "i.png"
        preflight = "allow"
        awake = ["Mon-Fri 08:00-18:00 Europe/Berlin"]
        prewarm = ["Mon-Fri 07:55 Europe/Berlin"]
        min_awake_seconds = 60
        [wake.cors]
        origins = ["https://a.example"]
        credentials = true
        [[wake.reply]]
        path = "/healthz"
        body = "asleep\n"
        [[wake.reply]]
        path = "/live"
        status = 204
        while = "always"
        count = true
        [waiting]
        page_after_seconds = 4
        retry_seconds = 2
        page_file = "p.html"
        "#,
        dir.path(),
    )
    .unwrap();
    let wake = policies.wake.clone().unwrap();
    assert_eq!(wake.who.methods, [Method::GET, Method::POST]);
    assert_eq!((wake.who.paths_allow.len(), wake.who.paths_deny.len()), (1, 2));
    assert_eq!((wake.who.user_agents_deny.len(), wake.who.credentials.len()), (2, 2));
    assert_eq!(wake.budget, Some(Rate { wakes: 60, per_seconds: 3600, burst: 60 }));
    assert_eq!(wake.per_address, Some(Rate { wakes: 10, per_seconds: 3600, burst: 3 }));
    assert_eq!(&*wake.robots.as_ref().unwrap().body, b"User-agent: x\n");
    assert!(matches!(&wake.favicon, Some(Favicon::File(f)) if f.content_type == "image/png"));
    let cors = wake.cors.as_ref().unwrap();
    assert_eq!((cors.origins.len(), cors.credentials, cors.max_age_seconds), (1, true, 60));
    let [health, live] = &*wake.replies else { panic!() };
    assert_eq!((health.status.as_u16(), health.always, health.count), (200, false, false));
    assert_eq!((live.status.as_u16(), live.always, live.count), (204, true, true));
    let schedule = &wake.schedule;
    assert_eq!((schedule.awake.len(), schedule.prewarm.len()), (1, 1));
    assert_eq!(schedule.min_awake_seconds, 60);
    let waiting = policies.waiting.clone().unwrap();
    assert_eq!((waiting.page_after_seconds, waiting.retry_seconds), (Some(4), 2));
    assert_eq!(waiting.page.as_ref().unwrap().render("a", "h", 1), "<p>a</p>");
    let json = serde_json::to_string(&policies).unwrap();
    assert_eq!(serde_json::from_str::<Policies>(&json).unwrap(), policies);
}

#[test]
fn what_is_required_has_a_default() {
    let policies = parse("[wake]\nauthenticated = 'required'\n", Path::new("/")).unwrap();
    let credentials = &policies.wake.unwrap().who.credentials;
    assert_eq!(*credentials, [Credential::Header(http::header::AUTHORIZATION)]);
}

#[test]
fn every_mistake_at_once_with_its_line() {
    let got = refused(
        "[wake]\nmethods = ['get']\npaths = { deny = ['x'], alow = [] }\n\
         user_agents_deny = ['']\nauthenticated = 'maybe'\ncredentials = ['authorization']\n\
         budget = { wakes = 0 }\nper_address = { wakes = 1 }\nrobots = 'allow'\n\
         favicon_file = 'a.gif'\nrobots_file = 'r'\npreflight = 'allow'\nawake = ['Mon 8-18']\n\
         prewarm = ['07:55 Nowhere']\nmin_awake_seconds = -1\n\
         [[wake.reply]]\npath = '/x'\nstatus = 101\n[[wake.reply]]\npath = '/y'\nstatus = 204\n\
         body = 'x'\n[[wake.reply]]\ncontent_type = 'text'\nwhile = 'x'\n\
         [waiting]\npage_after_seconds = 9999\nretry_seconds = 0\npage = 'x'\n",
    );
    let expected = [
        "a.toml:2: `wake.methods`: `get` is no method; write it in capitals, as `GET`",
        "a.toml:3: `wake.paths.deny`: a pattern of paths starts with `/`; `x` does not",
        "a.toml:3: unknown key `wake.paths.alow`; did you mean `allow`?",
        "a.toml:4: `wake.user_agents_deny`: a pattern of a User-Agent is a part of it, and this one is empty",
        "a.toml:5: `wake.authenticated`: is one of `any`, `required`",
        "a.toml:7: `wake.budget.wakes`: is between 1 and 1000000",
        "a.toml:8: a budget needs `wakes` and `per_seconds`",
        "a.toml:9: `wake.robots`: is one of `disallow`",
        "a.toml:10: `wake.favicon_file`: is an `.ico`, a `.png` or an `.svg`",
        "a.toml:11: `wake.robots_file`: /nowhere/r can't be read: No such file or directory (os error 2)",
        "a.toml:1: `preflight = \"allow\"` needs `[wake.cors] origins`",
        "a.toml:13: `wake.awake`: `8` is no time of day; write `HH:MM`, from 00:00 to 23:59 (24:00 at the end of a window)",
        "a.toml:14: `wake.prewarm`: `Nowhere` is no time zone that is known here; write its IANA name, such as `Europe/Berlin`",
        "a.toml:18: `wake.reply.status`: is between 200 and 599",
        "a.toml:19: a response with status 204 has no body",
        "a.toml:23: `wake.reply.path` is missing",
        "a.toml:24: `wake.reply.content_type`: `text` is no media type, such as `text/plain`",
        "a.toml:25: `wake.reply.while`: is one of `asleep`, `always`",
        "a.toml:27: `waiting.page_after_seconds`: is between 0 and 3600",
        "a.toml:28: `waiting.retry_seconds`: is between 1 and 300",
    ];
    for line in expected {
        assert!(got.iter().any(|got| got == line), "{line} is not in {got:#?}");
    }
    assert!(got.iter().any(|l| l.starts_with("a.toml:29: unknown key `waiting.page`")), "{got:#?}");
}

#[test]
fn what_means_nothing_is_a_mistake() {
    let table = [
        ("credentials = ['authorization']", "mean nothing without"),
        ("cors = { origins = ['*'] }", "means nothing without"),
        ("preflight = 'allow'\ncors = { origins = ['*'], credentials = true }", "name the origins"),
        ("cors = { origins = ['HTTPS://a'] }", "an origin is"),
    ];
    for (text, why) in table {
        let got = refused(&format!("[wake]\n{text}\n"));
        assert!(got.iter().any(|line| line.contains(why)), "{got:?}");
    }
}

#[test]
fn files_are_bounded_and_their_lines_told() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path();
    std::fs::write(base.join("big.ico"), vec![0; MAX_STATIC + 1]).unwrap();
    std::fs::write(base.join("full.ico"), vec![0; MAX_STATIC]).unwrap();
    std::fs::write(base.join("full.html"), "\"".repeat(MAX_PAGE)).unwrap();
    std::fs::write(base.join("p.html"), "<p>\n{{nmae}}").unwrap();
    std::fs::write(base.join("latin.html"), [0xff]).unwrap();
    let table = [
        ("[wake]\nfavicon_file = 'big.ico'\n", "has more than 16384 bytes"),
        ("[wake]\nrobots_file = '.'\n", "is no file"),
        ("[wake]\nfavicon = true\nfavicon_file = 'full.ico'\n", "keep one"),
        ("[wake]\nrobots = 'disallow'\nrobots_file = 'full.ico'\n", "keep one"),
        ("[waiting]\npage_file = 'p.html'\n", "p.html: line 2: unknown `{{nmae}}`"),
        ("[waiting]\npage_file = 'latin.html'\n", "is no UTF-8"),
        (
            "[wake]\nfavicon_file = 'full.ico'\n[waiting]\npage_file = 'full.html'\n",
            "and 40960 are allowed",
        ),
    ];
    for (text, why) in table {
        let got = parse(text, base).unwrap_err();
        assert!(got.iter().any(|line| line.contains(why)), "{why} is not in {got:?}");
    }
    assert!(parse("[wake]\nfavicon_file = 'full.ico'\n", base).is_ok());
    let nothing = parse("[wake]\nfavicon = true\nrobots = 'disallow'\n", base).unwrap();
    assert_eq!(nothing.wake.unwrap().favicon, Some(Favicon::Nothing));
}

#[test]
fn lists_are_bounded() {
    let many = "'/x',".repeat(MAX_LIST + 1);
    let got = refused(&format!("[wake]\npaths = {{ allow = [{many}] }}\n"));
    assert!(got[0].contains("has more than 64 entries"), "{got:?}");
    let replies = "[[wake.reply]]\npath = '/x'\n".repeat(MAX_LIST + 1);
    assert!(refused(&replies).iter().any(|l| l.contains("more than 64 `reply`")));
}

//! The waiting page: ours, or the operator's.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The longest page of an operator's, in bytes. It travels whole with the app's policy.
pub const MAX_PAGE: usize = 16 * 1024;

/// More styles than any page has.
const MAX_STYLES: usize = 16;

/// The longest name that is written into a page, in characters: that of a host.
const MAX_NAME: usize = 253;

/// A page with `{{app}}`, `{{host}}` and `{{retry_seconds}}` in it, each of which is escaped for
/// text and for quoted attributes.
///
/// It is shown under a policy that allows its `<style>` elements, by their hashes, and images in
/// `data:`; no scripts, no `style` attributes, nothing from elsewhere, no forms, no frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Template {
    text: String,
    security_policy: HeaderValue,
}

/// Why a text is no [`Template`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// It is too long.
    #[error("a waiting page has at most {MAX_PAGE} bytes; this has {0}")]
    Length(usize),
    /// What stands between braces is not known.
    #[error(
        "line {line}: unknown `{{{{{name}}}}}`; known here: `{{{{app}}}}`, `{{{{host}}}}`, `{{{{retry_seconds}}}}`"
    )]
    Unknown {
        /// From 1.
        line: usize,
        /// What stands there.
        name: String,
    },
    /// Braces do not close.
    #[error("line {line}: `{{{{` without `}}}}`")]
    Open {
        /// From 1.
        line: usize,
    },
    /// A style changes with each visitor, so that its hash would not fit.
    #[error(
        "line {line}: nothing can be filled in within `<style>`; its hash has to stay the same"
    )]
    InStyle {
        /// From 1.
        line: usize,
    },
    /// A style does not end.
    #[error("line {line}: `<style>` without `</style>`")]
    OpenStyle {
        /// From 1.
        line: usize,
    },
    /// A script, which would not be run.
    #[error(
        "line {line}: a waiting page has no scripts; `<meta http-equiv=\"refresh\" content=\"{{{{retry_seconds}}}}\">` comes again without one"
    )]
    Script {
        /// From 1.
        line: usize,
    },
    /// More styles than are allowed by hash.
    #[error("a waiting page has at most {MAX_STYLES} `<style>` elements")]
    Styles,
}

const OURS: &str = r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
<meta http-equiv="refresh" content="{{retry_seconds}}">
<title>{{app}} is starting</title>
<style>
:root { color-scheme: light dark }
body { font: 1.1rem/1.5 system-ui, sans-serif; max-width: 34rem; margin: 18vh auto 0; padding: 0 1.5rem; color: #222; background: #fff }
h1 { font-size: 1.5rem; overflow-wrap: anywhere }
small { color: #666 }
hr { height: .25rem; border: 0; border-radius: .125rem; background: #2a6fdb; animation: beat 1.6s ease-in-out infinite alternate }
@keyframes beat { from { opacity: .2 } }
@media (prefers-reduced-motion: reduce) { hr { animation: none } }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #161616 } small { color: #999 } hr { background: #7aa8f0 } }
</style>
</head>
<body>
<main role="status" aria-live="polite">
<h1>{{app}} is starting</h1>
<hr aria-hidden="true">
<p>It was asleep and takes a moment. This page looks again by itself every {{retry_seconds}} seconds.</p>
<p><small>{{host}}</small></p>
</main>
</body>
</html>
"#;

impl TryFrom<String> for Template {
    type Error = TemplateError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.len() > MAX_PAGE {
            return Err(TemplateError::Length(text.len()));
        }
        // Browsers hash what they parse, and they parse it with plain line ends
        // (HTML, "Preprocessing the input stream").
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let line = |at: usize| 1 + text[..at].bytes().filter(|b| *b == b'\n').count();
        let lower = text.to_ascii_lowercase();
        if let Some(at) = lower.find("<script") {
            return Err(TemplateError::Script { line: line(at) });
        }
        let mut rest = 0;
        while let Some(found) = text[rest..].find("{{") {
            let at = rest + found;
            let inner = &text[at + 2..];
            let end = inner.find("}}").ok_or(TemplateError::Open { line: line(at) })?;
            if Name::of(&inner[..end]).is_none() {
                let name = inner[..end].chars().take(32).collect();
                return Err(TemplateError::Unknown { line: line(at), name });
            }
            rest = at + 2 + end + 2;
        }
        let mut count = 0;
        for (at, style) in styles(&text, &lower) {
            let style = style.ok_or(TemplateError::OpenStyle { line: line(at) })?;
            if style.contains("{{") {
                return Err(TemplateError::InStyle { line: line(at) });
            }
            count += 1;
        }
        if count > MAX_STYLES {
            return Err(TemplateError::Styles);
        }
        Ok(Self { security_policy: security_policy(&text, &lower), text })
    }
}

impl From<Template> for String {
    fn from(template: Template) -> Self {
        template.text
    }
}

/// Where each `<style>` begins and what is in it; none where it does not end.
fn styles<'t>(text: &'t str, lower: &'t str) -> impl Iterator<Item = (usize, Option<&'t str>)> {
    const START: &str = "<style";
    let mut rest = 0;
    std::iter::from_fn(move || {
        let at = rest + lower.get(rest..)?.find(START)?;
        let content = lower[at..].find('>').map(|end| at + end + 1);
        let end = content.and_then(|content| Some(content + lower[content..].find("</style")?));
        rest = end.unwrap_or(lower.len());
        Some((at, content.zip(end).map(|(content, end)| &text[content..end])))
    })
}

fn security_policy(text: &str, lower: &str) -> HeaderValue {
    const REST: &str = "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let mut policy = String::from("default-src 'none'; ");
    let mut before = "style-src";
    for (_, style) in styles(text, lower) {
        let hash = STANDARD.encode(Sha256::digest(style.unwrap_or_default()));
        policy.push_str(before);
        policy.push_str(&format!(" 'sha256-{hash}'"));
        before = "";
    }
    if before.is_empty() {
        policy.push_str("; ");
    }
    policy.push_str(REST);
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}

#[derive(Clone, Copy)]
enum Name {
    App,
    Host,
    RetrySeconds,
}

impl Name {
    fn of(text: &str) -> Option<Self> {
        match text.trim() {
            "app" => Some(Self::App),
            "host" => Some(Self::Host),
            "retry_seconds" => Some(Self::RetrySeconds),
            _ => None,
        }
    }
}

impl Template {
    /// The page that is shown where the operator has none: about 2 KiB, light or dark as the
    /// visitor has it.
    pub fn ours() -> &'static Self {
        static TEMPLATE: LazyLock<Template> = LazyLock::new(|| Template {
            text: OURS.to_owned(),
            security_policy: security_policy(OURS, OURS),
        });
        &TEMPLATE
    }

    /// It with its names filled in, once: what is filled in is not looked at again.
    pub fn render(&self, app: &str, host: &str, retry_seconds: u32) -> String {
        let mut page = String::with_capacity(self.text.len() + app.len() + host.len());
        let mut rest = &*self.text;
        while let Some((before, after)) = rest.split_once("{{") {
            page.push_str(before);
            let Some((name, after)) = after.split_once("}}") else { break };
            match Name::of(name) {
                Some(Name::App) => escape(&mut page, app),
                Some(Name::Host) => escape(&mut page, host),
                Some(Name::RetrySeconds) => page.push_str(&retry_seconds.to_string()),
                None => {}
            }
            rest = after;
        }
        page.push_str(rest);
        page
    }

    /// Its `Content-Security-Policy`.
    pub fn security_policy(&self) -> HeaderValue {
        self.security_policy.clone()
    }
}

fn escape(page: &mut String, text: &str) {
    for c in text.chars().take(MAX_NAME) {
        match c {
            '&' => page.push_str("&amp;"),
            '<' => page.push_str("&lt;"),
            '>' => page.push_str("&gt;"),
            '"' => page.push_str("&quot;"),
            '\'' => page.push_str("&#39;"),
            c => page.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn template(text: &str) -> Result<Template, TemplateError> {
        Template::try_from(text.to_owned())
    }

    #[test]
    fn ours_is_a_good_template() {
        assert_eq!(template(OURS).as_ref(), Ok(Template::ours()));
        let page = Template::ours().render("shop", "shop.example", 3);
        assert!(page.len() <= 4096, "{}", page.len());
        let longest = Template::ours().render(&"&".repeat(64), &"x".repeat(10_000), u32::MAX);
        assert!(longest.len() <= 4096, "{}", longest.len());
        for part in [
            "<html lang=\"en\">",
            "role=\"status\"",
            "prefers-color-scheme: dark",
            "<title>shop is starting</title>",
            "<meta http-equiv=\"refresh\" content=\"3\">",
            "shop.example",
        ] {
            assert!(page.contains(part), "{part}");
        }
        for outside in ["<script", "http://", "https://", "src=", "href=", "<link", "style=", "{{"]
        {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn the_policy_fits_the_styles() {
        // printf 'a{}' | openssl dgst -sha256 -binary | base64
        let hash = STANDARD.encode(Sha256::digest("a{}"));
        let page = template("<STYLE media='all'>a{}</Style><style>\r\nb{}</style>").unwrap();
        let policy = page.security_policy();
        let policy = policy.to_str().unwrap();
        let second = STANDARD.encode(Sha256::digest("\nb{}"));
        assert_eq!(
            policy,
            format!(
                "default-src 'none'; style-src 'sha256-{hash}' 'sha256-{second}'; img-src data:; \
                 base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            )
        );
        let plain = template("<p>").unwrap().security_policy();
        assert!(plain.to_str().unwrap().starts_with("default-src 'none'; img-src data:; "));
    }

    #[test]
    fn what_is_filled_in_is_escaped_and_not_looked_at_again() {
        let page = template("<p title='{{host}}'>{{ app }} {{retry_seconds}}</p>").unwrap();
        assert_eq!(
            page.render("{{host}}<b>", "'\"&>", 7),
            "<p title='&#39;&quot;&amp;&gt;'>{{host}}&lt;b&gt; 7</p>"
        );
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        use TemplateError::*;
        let table = [
            ("\n{{nmae}}", Unknown { line: 2, name: "nmae".into() }),
            ("{{app}}\n\r\n{{app", Open { line: 3 }),
            ("\n<style>{{app}}</style>", InStyle { line: 2 }),
            ("<style>a{}", OpenStyle { line: 1 }),
            ("<style", OpenStyle { line: 1 }),
            ("<p>\n<SCRIPT>", Script { line: 2 }),
        ];
        for (text, error) in table {
            assert_eq!(template(text), Err(error), "{text}");
        }
        assert_eq!(template(&"x".repeat(MAX_PAGE + 1)), Err(Length(MAX_PAGE + 1)));
        assert_eq!(template(&"<style></style>".repeat(MAX_STYLES + 1)), Err(Styles));
        assert_eq!(
            template("{{x}}").unwrap_err().to_string(),
            "line 1: unknown `{{x}}`; known here: `{{app}}`, `{{host}}`, `{{retry_seconds}}`"
        );
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(text in "([<>{}é]|style|</style>|<style>|\\{\\{app\\}\\}|\r|\n){0,12}", app in "\\PC{0,10}") {
            if let Ok(page) = template(&text) {
                let names = text.matches("{{app}}").count();
                let mut escaped = String::new();
                escape(&mut escaped, &app);
                if names > 0 {
                    prop_assert!(page.render(&app, "h", 1).contains(&escaped));
                }
                prop_assert_eq!(Template::try_from(String::from(page.clone())), Ok(page));
            }
        }
    }
}

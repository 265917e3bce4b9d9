//! Globs over plain text, and what is denied by User-Agent.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

/// Whether `text` is as `glob` says, where `*` stands for any run of bytes. In time proportional to
/// the product of their lengths, without allocating.
pub(crate) fn glob(glob: &[u8], text: &[u8], fold: bool) -> bool {
    let same = |a: u8, b: u8| if fold { a.eq_ignore_ascii_case(&b) } else { a == b };
    let (mut g, mut t) = (0, 0);
    // Where to go on when what follows the last `*` does not fit: that `*` takes one byte more.
    let mut back = None;
    loop {
        match (glob.get(g), text.get(t)) {
            (Some(b'*'), _) => {
                g += 1;
                back = Some((g, t));
                continue;
            }
            (Some(a), Some(b)) if same(*a, *b) => {
                (g, t) = (g + 1, t + 1);
                continue;
            }
            (None, None) => return true,
            (_, None) => return false,
            _ => {}
        }
        let Some((after, taken)) = back else { return false };
        back = Some((after, taken + 1));
        (g, t) = (after, taken + 1);
    }
}

/// The most that is looked at of a User-Agent, in bytes. Whoever makes theirs longer could as well
/// have sent another.
const MAX_USER_AGENT: usize = 1024;

/// The longest pattern, in bytes.
pub(crate) const MAX_PATTERN: usize = 256;

/// A User-Agent that may not wake: a part of it, or with `*` a glob of the whole. Case does not
/// matter. It only ever denies, since anybody can send any User-Agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UserAgentPattern(Box<str>);

/// Why a text is no [`UserAgentPattern`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserAgentError {
    /// It would fit every User-Agent there is.
    #[error("a pattern of a User-Agent is a part of it, and this one is empty")]
    Empty,
    /// It is too long.
    #[error("a pattern of a User-Agent has at most {MAX_PATTERN} characters")]
    Length,
}

impl TryFrom<String> for UserAgentPattern {
    type Error = UserAgentError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.len() {
            0 => Err(UserAgentError::Empty),
            1..=MAX_PATTERN => Ok(Self(text.into())),
            _ => Err(UserAgentError::Length),
        }
    }
}

impl From<UserAgentPattern> for String {
    fn from(pattern: UserAgentPattern) -> Self {
        pattern.0.into()
    }
}

impl Display for UserAgentPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl UserAgentPattern {
    /// Whether `user_agent` is one of these.
    pub fn matches(&self, user_agent: &[u8]) -> bool {
        let text = &user_agent[..user_agent.len().min(MAX_USER_AGENT)];
        let pattern = self.0.as_bytes();
        if pattern.contains(&b'*') {
            return glob(pattern, text, true);
        }
        text.windows(pattern.len()).any(|part| part.eq_ignore_ascii_case(pattern))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a glob means, in so many words.
    fn naive(glob: &[u8], text: &[u8], fold: bool) -> bool {
        match (glob.split_first(), text.split_first()) {
            (None, _) => text.is_empty(),
            (Some((b'*', rest)), _) => (0..=text.len()).any(|n| naive(rest, &text[n..], fold)),
            (Some((a, rest)), Some((b, after))) => {
                let same = if fold { a.eq_ignore_ascii_case(b) } else { a == b };
                same && naive(rest, after, fold)
            }
            (Some(_), None) => false,
        }
    }

    proptest! {
        #[test]
        fn a_glob_means_what_it_says(g in "[abA*]{0,8}", t in "[abAB]{0,10}", fold: bool) {
            prop_assert_eq!(
                glob(g.as_bytes(), t.as_bytes(), fold),
                naive(g.as_bytes(), t.as_bytes(), fold)
            );
        }
    }

    #[test]
    fn user_agents() {
        let table = [
            ("bot", "Mozilla/5.0 (compatible; GoogleBot/2.1)", true),
            ("bot", "Mozilla/5.0 Firefox", false),
            ("bot", "", false),
            ("curl/*", "curl/8.1", true),
            ("curl/*", "libcurl/8.1", false),
            ("*curl*", "libcurl/8.1", true),
            ("*", "", true),
        ];
        for (pattern, agent, matches) in table {
            let parsed = UserAgentPattern::try_from(pattern.to_owned()).unwrap();
            assert_eq!(parsed.matches(agent.as_bytes()), matches, "{pattern} {agent}");
            assert!(!parsed.matches(b"\xff\xfe") || pattern == "*");
        }
        assert_eq!(UserAgentPattern::try_from(String::new()), Err(UserAgentError::Empty));
        assert_eq!(UserAgentPattern::try_from("x".repeat(257)), Err(UserAgentError::Length));
    }
}

//! A configuration as it may be shown to operators: with the defaults of what was left out, and
//! without what is secret.

use toml::{Table, Value};

/// What stands in the place of a secret.
const LEFT_OUT: &str = "(left out)";

/// A key with one of these in its name holds a secret, or may: rather one too many.
const SECRET: [&str; 11] = [
    "authorization",
    "cookie",
    "credential",
    "hash",
    "key",
    "pass",
    "private",
    "secret",
    "seed",
    "token",
    "users",
];

/// The TOML of `text` over that of `defaults`, without secrets and comments. None when one of them
/// is no TOML.
pub fn shown(text: &str, defaults: &str) -> Option<String> {
    let mut table: Table = defaults.parse().ok()?;
    lay_over(&mut table, text.parse().ok()?);
    for (name, value) in &mut table {
        hide(name, value);
    }
    toml::to_string(&table).ok()
}

/// What is in `over` goes before what is in `under`; only tables are mixed.
fn lay_over(under: &mut Table, over: Table) {
    for (name, value) in over {
        match (under.get_mut(&name), value) {
            (Some(Value::Table(under)), Value::Table(over)) => lay_over(under, over),
            (_, value) => drop(under.insert(name, value)),
        }
    }
}

fn hide(name: &str, value: &mut Value) {
    let lower = name.to_ascii_lowercase();
    let secret = SECRET.iter().any(|word| lower.contains(word));
    match value {
        Value::Table(table) if secret => {
            table.clear();
            table.insert(LEFT_OUT.to_owned(), true.into());
        }
        Value::Boolean(_) => {}
        value if secret => *value = LEFT_OUT.into(),
        Value::Table(table) => {
            for (name, value) in table {
                hide(name, value);
            }
        }
        Value::Array(items) => {
            for item in items {
                hide(name, item);
            }
        }
        Value::String(text) => {
            if let Some(without) = without_user(text) {
                *text = without;
            }
        }
        _ => {}
    }
}

/// A URL without the user and password in it; none when there are none.
fn without_user(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (_, host) = authority.rsplit_once('@')?;
    Some(format!("{scheme}://{LEFT_OUT}@{host}{}", &rest[authority.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, defaults: &str) -> Table {
        shown(text, defaults).unwrap().parse().unwrap()
    }

    #[test]
    fn the_file_goes_before_the_defaults() {
        let got = read(
            "[a]\nx = 1\n[[o]]\nid = 'mine'",
            "[a]\nx = 9\ny = 2\nz = { k = 1 }\n[b]\nw = 3\n[[o]]\nid = 'd'",
        );
        let expected = "[a]\nx = 1\ny = 2\nz = { k = 1 }\n[b]\nw = 3\n[[o]]\nid = 'mine'";
        assert_eq!(got, expected.parse().unwrap());
        assert_eq!(shown("[", ""), None);
    }

    #[test]
    fn secrets_are_left_out_wherever_they_are() {
        let text = shown(
            "api_token = 's1'\n# s2\n[tls]\nKEY = ['s3']\nhash_at = 11112222\n\
             [users]\ns4 = 's5'\n[[o]]\npassword = 's6'\nname = 'n'\nsecret = true\n\
             urls = ['https://u:s7@h/p?q=@', 'https://h/a@b', 'a@b']\nheaders = { Authorization = 's8' }",
            "secret_default = 's9'",
        )
        .unwrap();
        for secret in ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "1111"] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
        for kept in ["\"n\"", "secret = true", "@h/p?q=@", "https://h/a@b", "\"a@b\""] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
    }
}

//! Removes secrets from texts of other programs. Go flannel, for example, logs all its flags at start,
//! including the etcd password.

/// Settings whose values are secrets, in lower case.
const NAMES: &[&str] = &[
    "password",
    "passwd",
    "token",
    "secret",
    "privatekey",
    "private-key",
    "private_key",
    "presharedkey",
    "preshared-key",
    "psk",
    "bearer",
    HEADER,
];

/// The HTTP header whose whole value is a secret.
const HEADER: &str = "authorization";

/// Replaces values that look like secrets with `***`.
pub(super) fn scrub(text: &str) -> String {
    text.split_inclusive('\n').map(line).collect()
}

fn line(line: &str) -> String {
    // The length does not change, because only ASCII letters are converted. Positions are therefore valid in both.
    let lower = line.to_ascii_lowercase();
    let mut out = String::new();
    let mut from = 0;
    for (begin, end) in names(&lower) {
        // The name is part of a value that was already replaced.
        if begin < from {
            continue;
        }
        // The value of a header has several words, such as `Bearer abc`.
        let header = lower.get(begin..end) == Some(HEADER);
        let Some((value, stop)) = value(line, end, header) else {
            out.push_str(line.get(from..end).unwrap_or_default());
            from = end;
            continue;
        };
        out.push_str(line.get(from..value).unwrap_or_default());
        out.push_str("***");
        from = stop;
    }
    // URLs may also contain a user's password.
    out.push_str(line.get(from..).unwrap_or_default());
    user(&out)
}

/// The byte offsets of the start and end of each name. Makes only one pass over the line for each name,
/// because a line may contain megabytes.
fn names(lower: &str) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = NAMES
        .iter()
        .flat_map(|name| lower.match_indices(name).map(|(at, name)| (at, at + name.len())))
        .collect();
    found.sort_unstable();
    found
}

/// The byte offsets of the value's start and end; `None` if the text assigns none to the name.
fn value(line: &str, from: usize, header: bool) -> Option<(usize, usize)> {
    let rest = line.get(from..)?;
    let sign = rest.find(|c: char| !matches!(c, '"' | '\'' | '\\' | ' '))?;
    let (first, blanks) = (rest.get(sign..)?.chars().next()?, rest.get(..sign)?.contains(' '));
    let behind = match first {
        ':' | '=' => sign + 1,
        // The value follows after a blank, as in `Bearer abc` or `--etcd-password abc`.
        _ if blanks => sign,
        _ => return None,
    };
    let begin =
        behind + rest.get(behind..)?.find(|c: char| !matches!(c, '"' | '\'' | '\\' | ' '))?;
    // A quoted value ends at the quote, an unquoted value at the end of the word. A secret may contain any other character.
    let quoted = rest.get(behind..begin)?.contains(['"', '\'']);
    let ends = |c: char| {
        if quoted {
            matches!(c, '"' | '\'' | '\\' | '\n')
        } else if header {
            c == '\n'
        } else {
            c.is_whitespace()
        }
    };
    let length = rest.get(begin..)?.find(ends).unwrap_or(rest.len() - begin);
    (length > 0).then_some((from + begin, from + begin + length))
}

/// Replaces user and password in URLs such as `https://user:password@host`.
fn user(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("://") {
        out.push_str(before);
        out.push_str("://");
        // A password may contain a slash, so the host begins after the last `@` before the next URL.
        let end = after
            .find(|c: char| c.is_whitespace() || matches!(c, '"' | '\''))
            .unwrap_or(after.len());
        let end = after.get(..end).and_then(|word| word.find("://")).unwrap_or(end);
        let (authority, tail) = after.split_at_checked(end).unwrap_or((after, ""));
        match authority.rsplit_once('@') {
            Some((_, host)) => out.push_str(&format!("***@{host}")),
            None => out.push_str(authority),
        }
        rest = tail;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn secrets_are_taken_out() {
        for (text, want) in [
            ("etcdPassword:s3,cret) etcdUsername:u", "etcdPassword:*** etcdUsername:u"),
            (r#""password": "s3, cret""#, r#""password": "***""#),
            ("https://user:s3/cret@10.0.0.1:2379/x", "https://***@10.0.0.1:2379/x"),
            (r#""Authorization": "Basic s3cret""#, r#""Authorization": "***""#),
            ("etcdPassword:s3cret etcdUsername:u", "etcdPassword:*** etcdUsername:u"),
            ("--etcd-password=s3cret --x", "--etcd-password=*** --x"),
            ("--etcd-password s3cret", "--etcd-password ***"),
            (r#"{"password": "s3cret", "a": 1}"#, r#"{"password": "***", "a": 1}"#),
            (r#"{\"Token\":\"s3cret\"}"#, r#"{\"Token\":\"***\"}"#),
            ("Authorization: Bearer s3cret", "Authorization: ***"),
            ("authorization: Basic s3cret\nnext", "authorization: ***\nnext"),
            ("http://user:s3cret@10.0.0.1:2379,http://b", "http://***@10.0.0.1:2379,http://b"),
            ("PSK = s3cret\nnext", "PSK = ***\nnext"),
            ("the password", "the password"),
            ("tokens are renewed", "tokens are renewed"),
            ("nothing here: 10.5.0.0/16", "nothing here: 10.5.0.0/16"),
        ] {
            assert_eq!(scrub(text), want);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn any_text_is_scrubbed(text in "\\PC{0,80}|((password|token|://|@|=|:| |\"|ü|\n){0,20})") {
            scrub(&text);
        }

        #[test]
        fn no_assigned_secret_is_left(name in "(etcd)?[pP]assword|TOKEN|psk", sign in "=|: |:|\": \"", secret in "[a-z0-9]{8}x", tail in "[ ,}\n]?") {
            let scrubbed = scrub(&format!("a {name}{sign}{secret}{tail}"));
            prop_assert!(!scrubbed.contains(&secret), "{scrubbed}");
        }
    }
}

//! The bearer token of API requests, from the kubeconfig or from a file that is read again after 50 s.
//!
//! The authentication layer of the crate `kube` sends the content of the token file verbatim. Editors end a file with a newline, which client-go
//! trims.

use http::HeaderValue;
use kube::config::AuthInfo;
use secrecy::ExposeSecret;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;
use types::Problem;

/// After this time, the token file is read again. client-go uses the same time.
const FRESH: Duration = Duration::from_secs(50);

const OF_KUBECONFIG: &str = "the user's token";
const EMPTY: &str = "is empty";

pub(super) struct Token {
    file: Option<PathBuf>,
    held: Mutex<Held>,
}

struct Held {
    /// Value of `Authorization`.
    header: Option<HeaderValue>,
    /// When the token file was last read.
    read: Option<Instant>,
}

impl Token {
    /// Removes the token and the path of its file from the credentials. As in client-go, the file takes precedence over a token in the kubeconfig.
    pub(super) fn take(auth: &mut AuthInfo) -> Result<Option<Self>, Problem> {
        // kube prefers these two kinds of credentials.
        if auth.auth_provider.is_some() || auth.username.is_some() && auth.password.is_some() {
            return Ok(None);
        }
        let inline = auth.token.take().filter(|token| !token.expose_secret().trim().is_empty());
        let file = auth.token_file.take().filter(|path| !path.is_empty()).map(PathBuf::from);
        if inline.is_none() && file.is_none() {
            return Ok(None);
        }
        let header = inline
            .map(|token| header(token.expose_secret().as_bytes(), OF_KUBECONFIG))
            .transpose()?;
        Ok(Some(Self { file, held: Mutex::new(Held { header, read: None }) }))
    }

    /// Value of `Authorization`. While the token file is unusable, the last token stays in use. Fails only if there is none.
    pub(super) async fn header(&self) -> Result<HeaderValue, Problem> {
        let mut held = self.held.lock().await;
        let mut trouble = None;
        if let Some(file) =
            self.file.as_ref().filter(|_| held.read.is_none_or(|read| read.elapsed() >= FRESH))
        {
            let token = format!("the token file {}", file.display());
            match crate::file::read(file)
                .await
                .map_err(|error| unusable_token(&token, format_args!("cannot be read: {error}")))
                .and_then(|text| header(&text, &token))
            {
                Ok(header) => held.header = Some(header),
                Err(why) => trouble = Some(why),
            }
            held.read = Some(Instant::now());
        }
        if held.header.is_none() {
            // Read the file again for the next request.
            held.read = None;
        }
        held.header
            .clone()
            .ok_or_else(|| trouble.unwrap_or_else(|| unusable_token(OF_KUBECONFIG, EMPTY)))
    }
}

/// It never quotes the token.
fn unusable_token(token: &str, why: impl Display) -> Problem {
    Problem::new("kubernetes-token", format!("{token} {why}"))
}

/// Ignores the white space around the token, which the error calls `token`.
fn header(text: &[u8], token: &str) -> Result<HeaderValue, Problem> {
    let not_text = "is not text in UTF-8; write only the token, without other text";
    let text = std::str::from_utf8(text).map_err(|_| unusable_token(token, not_text))?.trim();
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() {
        return Err(unusable_token(token, EMPTY));
    }
    if line.len() < text.len() {
        let several = "has several lines, and line 1 is followed by other text; write only the token, without other text";
        return Err(unusable_token(token, several));
    }
    for (at, character) in line.chars().enumerate() {
        let kind = match character {
            c if c.is_control() => "a control character",
            ' ' => "a space",
            c if !c.is_ascii() => "a character outside ASCII",
            _ => continue,
        };
        let at = at + 1;
        let why =
            format!("has {kind} at position {at}; write only the token, without other characters");
        return Err(unusable_token(token, why));
    }
    let mut value = HeaderValue::try_from(format!("Bearer {line}"))
        .map_err(|error| unusable_token(token, error))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_sent_without_white_space_around_it() {
        for text in ["a.b-c", " a.b-c\r\n", "a.b-c\n\n", "\ta.b-c "] {
            let header = header(text.as_bytes(), OF_KUBECONFIG).unwrap();
            assert!(header.is_sensitive() && header == "Bearer a.b-c", "{text:?}");
        }
        for text in ["", "\n", "a\nb", "a b", "a\u{7}b", "é"] {
            assert!(header(text.as_bytes(), OF_KUBECONFIG).is_err(), "{text:?}");
        }
    }

    #[test]
    fn token_is_taken_unless_other_credentials_take_precedence() {
        let auth = |text: &str| serde_json::from_str::<AuthInfo>(text).unwrap();
        for (text, taken) in [
            (r#"{"token":"a"}"#, true),
            (r#"{"tokenFile":"/a"}"#, true),
            (r#"{"token":"","tokenFile":""}"#, false),
            (r#"{"username":"u","password":"p","token":"a"}"#, false),
            ("{}", false),
        ] {
            let mut auth = auth(text);
            let before = auth.clone();
            assert_eq!(Token::take(&mut auth).unwrap().is_some(), taken, "{text}");
            assert_eq!(
                auth.token.is_some() || auth.token_file.is_some(),
                !taken && before.token.is_some() && text.contains("username"),
                "{text}"
            );
        }
    }
}

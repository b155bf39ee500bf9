//! The bearer token of API requests, from the kubeconfig or from a file that the client reads again after 50 s.
//!
//! The authentication layer of the crate `kube` sends the content of the token file
//! verbatim. Editors end a file with a newline, which client-go trims.

use http::HeaderValue;
use kube::config::AuthInfo;
use secrecy::ExposeSecret;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Time after which the client reads the token file again. client-go uses the same time.
const FRESH: Duration = Duration::from_secs(50);

/// A bearer token.
pub(super) struct Token {
    file: Option<PathBuf>,
    held: Mutex<Held>,
}

struct Held {
    /// Value of the header `Authorization`.
    header: Option<HeaderValue>,
    /// Time at which the client last read the token file.
    read: Option<Instant>,
}

/// Kind of character that a token must not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stray {
    /// A control character.
    Control,
    /// A space.
    Space,
    /// A character outside ASCII.
    NotAscii,
}

/// Reason why a text is not a valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenFault {
    /// The token file is unreadable. The variant contains the system's error.
    Unread(String),
    /// Text that is not UTF-8.
    NotUtf8,
    /// The text is empty.
    Empty,
    /// Text that has several lines.
    SeveralLines,
    /// Invalid character, with the character's position in the text (from 1).
    Stray(Stray, usize),
    /// Text that is not valid in an HTTP header. The variant contains the library's error.
    Header(String),
}

/// Error for an invalid token. The error never quotes the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// Invalid token in the kubeconfig.
    User(TokenFault),
    /// Invalid token in a file.
    File(PathBuf, TokenFault),
}

impl fmt::Display for TokenFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unread(error) => write!(f, "cannot be read: {error}"),
            Self::NotUtf8 => f.write_str("is not text in UTF-8; write only the token, without other text"),
            Self::Empty => f.write_str("is empty"),
            Self::SeveralLines => f.write_str("has several lines, and line 1 is followed by other text; write only the token, without other text"),
            Self::Stray(stray, position) => {
                let stray = match stray {
                    Stray::Control => "a control character",
                    Stray::Space => "a space",
                    Stray::NotAscii => "a character outside ASCII",
                };
                write!(f, "has {stray} at position {position}; write only the token, without other characters")
            }
            Self::Header(error) => f.write_str(error),
        }
    }
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(why) => write!(f, "the user's token {why}"),
            Self::File(path, why) => write!(f, "the token file {} {why}", path.display()),
        }
    }
}

impl Token {
    /// Removes the token and the path of the token file from the credentials, and returns the token. As in client-go, the file takes precedence
    /// over a token in the kubeconfig.
    ///
    /// # Errors
    /// Returns an error with the reason if the token is invalid. The error never quotes the token.
    pub(super) fn take(auth: &mut AuthInfo) -> Result<Option<Self>, TokenError> {
        // kube prefers these two kinds of credentials.
        if auth.auth_provider.is_some() || auth.username.is_some() && auth.password.is_some() {
            return Ok(None);
        }
        let inline = auth.token.take().filter(|token| !token.expose_secret().trim().is_empty());
        let file = auth.token_file.take().filter(|path| !path.is_empty()).map(PathBuf::from);
        if inline.is_none() && file.is_none() {
            return Ok(None);
        }
        let header = inline.map(|token| header(token.expose_secret().as_bytes())).transpose();
        let header = header.map_err(TokenError::User)?;
        Ok(Some(Self { file, held: Mutex::new(Held { header, read: None }) }))
    }

    /// Returns the value of the header `Authorization`. While the token file is unusable, the client continues to use the last token.
    ///
    /// # Errors
    /// Returns an error if the client has no earlier token and the token file is unreadable or contains no valid token.
    pub(super) async fn header(&self) -> Result<HeaderValue, TokenError> {
        let mut held = self.held.lock().await;
        let mut trouble = None;
        if let Some(file) =
            self.file.as_ref().filter(|_| held.read.is_none_or(|read| read.elapsed() >= FRESH))
        {
            match crate::file::read(file)
                .await
                .map_err(|error| TokenFault::Unread(error.to_string()))
                .and_then(|text| header(&text))
            {
                Ok(header) => held.header = Some(header),
                Err(why) => trouble = Some(TokenError::File(file.clone(), why)),
            }
            held.read = Some(Instant::now());
        }
        if held.header.is_none() {
            // Read the file again for the next request.
            held.read = None;
        }
        held.header.clone().ok_or_else(|| trouble.unwrap_or(TokenError::User(TokenFault::Empty)))
    }
}

/// Returns the header `Authorization` for a token, without the white space around the token.
fn header(text: &[u8]) -> Result<HeaderValue, TokenFault> {
    let text = std::str::from_utf8(text).map_err(|_| TokenFault::NotUtf8)?.trim();
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() {
        return Err(TokenFault::Empty);
    }
    if line.len() < text.len() {
        return Err(TokenFault::SeveralLines);
    }
    for (at, character) in line.chars().enumerate() {
        let kind = match character {
            c if c.is_control() => Stray::Control,
            ' ' => Stray::Space,
            c if !c.is_ascii() => Stray::NotAscii,
            _ => continue,
        };
        return Err(TokenFault::Stray(kind, at + 1));
    }
    let mut value = HeaderValue::try_from(format!("Bearer {line}"))
        .map_err(|error| TokenFault::Header(error.to_string()))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_sent_without_white_space_around_it() {
        for text in ["a.b-c", " a.b-c\r\n", "a.b-c\n\n", "\ta.b-c "] {
            let header = header(text.as_bytes()).unwrap();
            assert!(header.is_sensitive() && header == "Bearer a.b-c", "{text:?}");
        }
        for text in ["", "\n", "a\nb", "a b", "a\u{7}b", "é"] {
            assert!(header(text.as_bytes()).is_err(), "{text:?}");
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

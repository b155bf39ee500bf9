//! Parses the query of an HTTP request.

/// Decodes the value. `None` if the parameter is absent, empty or not valid percent-encoded UTF-8.
pub fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let encoded = query?.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))?;
    let mut bytes = encoded.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high * 16 + low).ok()?
            }
            plain => plain,
        });
    }
    String::from_utf8(out).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_decoded() {
        for (query, value) in [
            (Some("row=10.244.1.0%2F24"), Some("10.244.1.0/24")),
            (Some("rows&row=a"), Some("a")),
            (Some("row="), None),
            (Some("row=%"), None),
            (Some("row=%ff"), None),
            (Some("arrow=a"), None),
            (None, None),
        ] {
            assert_eq!(parameter(query, "row").as_deref(), value, "{query:?}");
        }
    }
}

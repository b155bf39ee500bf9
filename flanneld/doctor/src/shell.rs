//! Quotes words for shell commands.

/// Quotes a text so that a shell reads it as one word.
pub fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..Default::default() })]

        /// A shell prints a quoted text unchanged and executes no part of the text.
        #[test]
        fn quoted_text_is_one_word_for_a_shell(text in "[^\0]{0,20}|[$`\"'\\\\;|&<>() \n!*?~#-]{0,12}") {
            let output = std::process::Command::new("sh").arg("-c").arg(format!("printf '%s' {}", word(&text))).output().unwrap();
            prop_assert_eq!(String::from_utf8_lossy(&output.stdout), text);
        }
    }
}

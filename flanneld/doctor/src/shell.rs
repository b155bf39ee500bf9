//! Quotes words for shell commands, and decides which names nft can read.

/// A shell reads the quoted text as one word.
pub fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Makes a rule that iptables-save printed safe for a shell: it writes comments in double quotes, in which a shell runs `$(…)`.
pub(crate) fn iptables_rule(saved: &str) -> String {
    let (mut words, mut current, mut quoted) = (Vec::new(), None::<String>, false);
    let mut characters = saved.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                quoted = !quoted;
                current.get_or_insert_default();
            }
            '\\' if quoted => current.get_or_insert_default().extend(characters.next()),
            ' ' if !quoted => words.extend(current.take()),
            character => current.get_or_insert_default().push(character),
        }
    }
    words.extend(current);
    let words: Vec<String> = words.iter().map(|text| word(text)).collect();
    words.join(" ")
}

/// True if nft reads the text as one name. The kernel accepts any bytes in the name of a table or a chain, and nft would read `;` as the end of a
/// command.
pub(crate) fn is_nft_name(text: &str) -> bool {
    let mut characters = text.chars();
    characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|c| c.is_ascii_alphanumeric() || "/_-.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rules_of_iptables_are_words_for_a_shell() {
        let saved = r#"-A FORWARD -s 10.0.0.0/8 -m comment --comment "it's $(touch /tmp/x) \"a\" ; \\ b" -j REJECT"#;
        let output = std::process::Command::new("sh")
            .arg("-c")
            .arg(format!("printf '[%s]' {}", iptables_rule(saved)))
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            r#"[-A][FORWARD][-s][10.0.0.0/8][-m][comment][--comment][it's $(touch /tmp/x) "a" ; \ b][-j][REJECT]"#
        );
        assert_eq!(iptables_rule("-A INPUT -j DROP"), "-A INPUT -j DROP");
        assert_eq!(iptables_rule(r#"-A "" x""#), "-A '' x");
    }

    #[test]
    fn names_of_nft_have_no_other_meaning() {
        assert!(["filter", "KUBE-FORWARD", "_a.b/c"].iter().all(|name| is_nft_name(name)));
        let hostile = ["", "a;flush ruleset", "a b", "$(id)", "7", "{", "a\nb", "*"];
        assert!(!hostile.iter().any(|name| is_nft_name(name)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..Default::default() })]

        #[test]
        fn quoted_text_is_one_word_for_a_shell(text in "[^\0]{0,20}|[$`\"'\\\\;|&<>() \n!*?~#-]{0,12}") {
            let output = std::process::Command::new("sh").arg("-c").arg(format!("printf '%s' {}", word(&text))).output().unwrap();
            prop_assert_eq!(String::from_utf8_lossy(&output.stdout), text);
        }
    }
}

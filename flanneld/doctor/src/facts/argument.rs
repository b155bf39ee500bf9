//! Arguments of flanneld's command line in their exact spelling, so that commands can find and edit them.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Without dashes: `iface`.
    pub flag: String,
    /// As on the command line.
    pub value: String,
    /// One word (`--iface=eth0`), not two (`--iface eth0`).
    pub joined: bool,
    /// One or two.
    pub dashes: String,
}

impl Argument {
    /// The result is in the order of the command line.
    pub fn find(
        words: impl IntoIterator<Item = String>,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<Self> {
        let mut words = words.into_iter().peekable();
        let mut found = Vec::new();
        while let Some(word) = words.next() {
            let name = word.trim_start_matches('-');
            let dashes = word.get(..word.len() - name.len()).unwrap_or_default();
            if !matches!(dashes.len(), 1 | 2) {
                continue;
            }
            let (flag, value, joined) = match name.split_once('=') {
                Some((flag, value)) => (flag, Some(value.to_owned()), true),
                None => (name, words.next_if(|next| wanted(name) && !next.starts_with('-')), false),
            };
            if let Some(value) = value.filter(|_| wanted(flag)) {
                found.push(Self {
                    flag: flag.to_owned(),
                    value,
                    joined,
                    dashes: dashes.to_owned(),
                });
            }
        }
        found
    }

    pub fn is(&self, flag: &str) -> bool {
        self.flag == flag
    }

    /// The word of the command line that contains the value.
    pub fn word(&self) -> String {
        if self.joined {
            format!("{}{}={}", self.dashes, self.flag, self.value)
        } else {
            self.value.clone()
        }
    }

    /// The replacement for [`Argument::word`] that sets `flag`. If the flag is a separate word, the caller must also replace that one.
    pub fn instead(&self, flag: &str, value: &str) -> String {
        if self.joined { format!("--{flag}={value}") } else { value.to_owned() }
    }
}

/// True if a remedy may edit the flag.
pub(crate) fn is_edited(flag: &str) -> bool {
    let is_address = flag.starts_with("iface") || flag.starts_with("public-ip");
    is_address || flag.ends_with("-port") || flag == "node-id"
}

/// True if the flag selects the store and contains no secret, so that `flannelctl` commands of a remedy can repeat it.
pub(crate) fn names_store(flag: &str) -> bool {
    matches!(
        flag,
        "etcd-endpoints"
            | "etcd-prefix"
            | "etcd-cafile"
            | "etcd-certfile"
            | "etcd-keyfile"
            | "subnet-dir"
    )
}

/// The arguments that remedies edit, and those that select the store.
pub fn on_command_line(words: impl IntoIterator<Item = String>) -> Vec<Argument> {
    let mut found = Argument::find(words, |flag| is_edited(flag) || names_store(flag));
    // A URL with `@` may contain a password. A `$` in a unit is a variable, whose value the unit does not show.
    found.retain(|argument| !names_store(&argument.flag) || !argument.value.contains(['@', '$']));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_is_found_in_each_spelling() {
        let words = [
            "--ip-masq",
            "--iface=eth0",
            "-iface-cidr=10.0.2.0/24",
            "--iface",
            "eth1",
            "--password",
            "eth2",
            "--iface",
            "--v=1",
            "eth3",
            "---iface=x",
        ];
        let found = Argument::find(words.map(str::to_owned), |flag| flag.starts_with("iface"));
        let shown: Vec<(String, String)> = found
            .iter()
            .map(|argument| (argument.word(), argument.instead("iface", "eth9")))
            .collect();
        let want = [
            ("--iface=eth0", "--iface=eth9"),
            ("-iface-cidr=10.0.2.0/24", "--iface=eth9"),
            ("eth1", "eth9"),
        ];
        assert_eq!(shown, want.map(|(word, instead)| (word.to_owned(), instead.to_owned())));
    }
}

//! What stands on the daemon's command line, as it stands there: who edits it has to find it.

/// Former names of flags with the present ones.
const RENAMED: &[(&str, &str)] = &[("page-ip", "status-ip"), ("page-port", "status-port")];

/// A flag with a value on the daemon's command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The flag's name: `iface`.
    pub flag: String,
    /// Its value.
    pub value: String,
    /// Whether both stand in one word, `--iface=eth0`; otherwise the value is a word of its own.
    pub joined: bool,
    /// The dashes before the name: one or two.
    pub dashes: String,
}

impl Argument {
    /// The flags of a command line that are of interest, in their order.
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
                None => (
                    name,
                    words.next_if(|next| wanted(name) && !next.starts_with('-')),
                    false,
                ),
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

    /// Whether it gives this flag, by its present or its former name.
    pub fn is(&self, flag: &str) -> bool {
        self.flag == flag || RENAMED.contains(&(self.flag.as_str(), flag))
    }

    /// The word with the value.
    pub fn word(&self) -> String {
        if self.joined {
            format!("{}{}={}", self.dashes, self.flag, self.value)
        } else {
            self.value.clone()
        }
    }

    /// The word in its place that says something else. The name of a flag in a word of its own is replaced beside it.
    pub fn instead(&self, flag: &str, value: &str) -> String {
        if self.joined {
            format!("--{flag}={value}")
        } else {
            value.to_owned()
        }
    }
}

/// Whether remedies change a flag.
pub(crate) fn is_edited(flag: &str) -> bool {
    flag.starts_with("iface") || flag.ends_with("-port") || flag == "node-id"
}

/// Whether a flag says where the leases are, without a secret: `flannelctl` takes it too.
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

/// What of a command line remedies need.
pub fn on_command_line(words: impl IntoIterator<Item = String>) -> Vec<Argument> {
    let mut found = Argument::find(words, |flag| is_edited(flag) || names_store(flag));
    // A password may stand in a URL; and what systemd puts in place of a variable stands in no unit.
    found.retain(|argument| !names_store(&argument.flag) || !argument.value.contains(['@', '$']));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_write_a_flag_is_found() {
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
        assert_eq!(
            shown,
            want.map(|(word, instead)| (word.to_owned(), instead.to_owned()))
        );
    }
}

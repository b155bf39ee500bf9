//! Commands that change or restart a daemon under a DaemonSet. One DaemonSet serves all nodes, so a command changes only the requested setting of the
//! DaemonSet.

use crate::command::{ActsOn, Command};
use crate::facts::Facts;
use crate::facts::argument::Argument;
use crate::facts::daemon::Launch;
use crate::finding::{EVERYWHERE, Evidence, Finding, HERE, ON_THE_NODE, WITH_KUBECTL};
use crate::shell::word;

/// Names of the DaemonSet and of its container in all manifests of flannel.
const SET: &str = "kube-flannel-ds";
const CONTAINER: &str = "kube-flannel";

/// `value` must be quoted for a shell. A flag for the same setting takes precedence over the environment variable.
pub(crate) fn set_env(namespace: &str, variable: &str, value: &str) -> Command {
    Command::in_namespace(namespace, |kubectl| {
        format!("{kubectl} set env daemonset/{SET} -c {CONTAINER} {variable}={value}")
    })
}

/// A sed script edits the DaemonSet. resourceVersion goes, because the API server rejects a replacement with an outdated version.
fn rewrite(namespace: &str, script: &str) -> Command {
    let script = word(script);
    Command::in_namespace(namespace, |kubectl| {
        format!(
            "{kubectl} get daemonset {SET} -o json | sed -E -e '/\"resourceVersion\":/d' -e {script} | {kubectl} replace -f -"
        )
    })
}

pub(crate) fn replace_argument(
    namespace: &str,
    argument: &Argument,
    flag: &str,
    value: &str,
) -> Command {
    let (old, new) =
        (pattern(&json(&argument.word())), replacement(&json(&argument.instead(flag, value))));
    if argument.joined {
        return rewrite(namespace, &format!("s|{old}|{new}|"));
    }
    // Flag and value are separate words, which JSON prints on two lines. The script replaces both only if the flag has this value.
    let (named, name) = (
        pattern(&json(&format!("{}{}", argument.dashes, argument.flag))),
        replacement(&json(&format!("--{flag}"))),
    );
    rewrite(namespace, &format!(r"/{named},$/{{N;s|{named},(\n *){old}|{name},\1{new}|;}}"))
}

/// Changes the port in flanneld's arguments or environment variables, and in kubelet's probes.
pub(crate) fn move_health_port(namespace: &str, from: u16, to: u16) -> Command {
    rewrite(namespace, &format!(r#"s/(healthz-port=|[pP]ort": |"value": "){from}\b/\1{to}/"#))
}

pub(crate) fn restart(namespace: &str, node: &str) -> Command {
    let on_node = word(&format!("spec.nodeName={node}"));
    Command::in_namespace(namespace, |kubectl| {
        format!("{kubectl} delete pod -l app=flannel --field-selector {on_node}")
    })
}

/// Sets the machine on which to run the commands: outside of flannel's pod for those of the host, a node with kubectl for those of kubectl. Adds a
/// note if the namespace is only assumed.
pub(crate) fn tell_place(finding: &mut Finding, facts: &Facts) {
    let acts_on = std::mem::take(&mut finding.acts_on);
    if acts_on.contains(&ActsOn::Host) {
        if finding.remedy.on == HERE && matches!(facts.daemon.launch, Launch::Kubernetes { .. }) {
            finding.remedy.on = ON_THE_NODE.to_owned();
        }
        return;
    }
    if acts_on.is_empty() {
        return;
    }
    if [HERE, EVERYWHERE].contains(&finding.remedy.on.as_str()) {
        finding.remedy.on = WITH_KUBECTL.to_owned();
    }
    let Launch::Kubernetes { namespace, assumed: true } = &facts.daemon.launch else {
        return;
    };
    if acts_on.contains(&ActsOn::Namespace) {
        let text = format!(
            "flannel's namespace is unknown on this node: the commands use {namespace}, as in the manifest"
        );
        finding.evidence.push(Evidence { text, from: "ls /var/log/pods".to_owned() });
    }
}

/// A JSON string, including the quotes.
fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// An extended regular expression that matches the text. `|` becomes `.`, because some versions of sed cannot escape the delimiter of the script.
pub(crate) fn pattern(text: &str) -> String {
    let quoted: String = text
        .chars()
        .flat_map(|c| [Some('\\').filter(|_| r"\.[]{}()*+?^$".contains(c)), Some(c)])
        .flatten()
        .collect();
    quoted.replace('|', ".")
}

pub(crate) fn replacement(text: &str) -> String {
    text.chars()
        .flat_map(|c| [Some('\\').filter(|_| r"\&|".contains(c)), Some(c)])
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edited(command: &str, text: &str) -> String {
        let script = command.split(" | ").find(|part| part.starts_with("sed ")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("in.json");
        std::fs::write(&file, text).unwrap();
        let output = std::process::Command::new("sh")
            .arg("-c")
            .arg(format!("{script} < '{}'", file.display()))
            .output()
            .unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn health_port_moves_in_all_its_places() {
        let text = r#""resourceVersion": "8081",
"--healthz-port=8081", "--x=8081"
"containerPort": 8081,
"hostPort": 8081,
"port": 8081
"port": 80810
"value": "8081"
"#;
        let want = r#""--healthz-port=8181", "--x=8081"
"containerPort": 8181,
"hostPort": 8181,
"port": 8181
"port": 80810
"value": "8181"
"#;
        assert_eq!(edited(&move_health_port("kube-flannel", 8081, 8181).text, text), want);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

        /// The sed script replaces only the given argument, whatever characters the argument's value has.
        #[test]
        fn argument_is_replaced(value in "[a-z0-9.*|^$()\\[\\]{}+?\\\\/&']{1,12}", joined in any::<bool>()) {
            let argument = Argument { flag: "iface-regex".to_owned(), value: value.clone(), joined, dashes: "--".to_owned() };
            let lines = |words: &[&str]| words.iter().map(|word| format!("    {},\n", json(word))).collect::<String>();
            let longer = format!("{value}0");
            let others = lines(&["--ip-masq", &longer, "--iface-regex", &longer]);
            let (old, new) = match joined {
                true => (lines(&[&argument.word()]), lines(&["--iface=e&t|h1"])),
                false => (lines(&[&value, "--iface-regex", &value]), lines(&[&value, "--iface", "e&t|h1"])),
            };
            let command = replace_argument("kube-flannel", &argument, "iface", "e&t|h1");
            prop_assert_eq!(edited(&command.text, &format!("{others}{old}")), format!("{others}{new}"));
        }
    }
}

//! `flannelctl leases` and `flannelctl release`, with leases in etcd and in a directory.

pub(crate) mod cleanup;
pub(crate) mod dropped_lab;
pub(crate) mod killed_lab;
pub(crate) mod packet_path;
pub(crate) mod probe;
pub(crate) mod routes;
pub(crate) mod status_page;

use anyhow::{Context, Result, ensure};
use lab::{Scene, SceneOptions, stdout_and_stderr, stdout_json, until};

use crate::healing::scenarios;

const HOST_GW: &str =
    r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","Backend":{"Type":"host-gw"}}"#;

scenarios! { lease_of_a_dead_node_is_released;
    lease_of_a_dead_node_is_released_from_a_directory => Scene::with_title("release: directory"),
    lease_of_a_dead_node_is_released_from_etcd => Scene::with_title("release: etcd").etcd(),
}

fn lease_of_a_dead_node_is_released(scene: SceneOptions<'_>) -> Result<()> {
    scene.nodes(3).net(HOST_GW).without_pods().run(|s| {
        let place = s.store.daemon_args();
        let (lease, subnet) = (s[2].lease_name()?, s[2].subnet()?);
        s[0].wait_output_contains("ip route", &subnet)?;
        let listed = stdout_json(&s[0].flannelctl(&["leases", "--json", &place[0]])?)?;
        let leases = listed.as_array().context("leases")?;
        ensure!(
            leases.len() == 3
                && leases.iter().any(|row| row["key"] == *lease && row["node"]["name"] == "h3"),
            "{listed}"
        );
        let long = stdout_and_stderr(&s[0].flannelctl(&["leases", "--long", &place[0]])?);
        ensure!(long.matches("last seen ").count() == 3, "{long}");
        s[2].kill_daemon()?;
        // A lease that was renewed just now needs --force, and each release without a terminal needs --yes.
        for (flags, code) in [
            (&["--yes"][..], 1),
            (&["--force"], 1),
            (&["--force", "--yes"], 0),
            (&["--force", "--yes"], 1),
        ] {
            let output = s[0].flannelctl(&[&["release", &lease, &place[0]], flags].concat())?;
            ensure!(output.status.code() == Some(code), "{flags:?}: {output:?}");
        }
        ensure!(
            s.store.lease_names_and_values()?.iter().all(|(name, _)| *name != lease),
            "{:?}",
            s.store.lease_names_and_values()?
        );
        s.nodes[..2].iter().try_for_each(|node| {
            until("the route goes", || {
                node.sh("ip route").is_ok_and(|routes| !routes.contains(&subnet))
            })
            .map(drop)
        })
    })
}

#[test]
fn unreadable_lease_is_listed_with_the_reason() -> Result<()> {
    Scene::with_title("odd").nodes(1).without_daemons().run(|s| {
        s.put("10.5.7.0-24", "{")?;
        s.put("notes", "mine")?;
        let listed = stdout_and_stderr(&s[0].flannelctl(&["leases", &s.store.daemon_args()[0]])?);
        ensure!(
            listed.contains("unreadable: ")
                && listed.lines().any(|line| line.contains("notes") && line.contains("key")),
            "{listed}"
        );
        Ok(())
    })
}

/// Terminal control sequences, for each lease field that a writer to the store can choose freely.
const HOSTILE: &str =
    "n\u{1b}[2J\u{1b}]0;t\u{7}\r\nfake line\u{9b}31m\u{202e}cod\u{200b}\u{2028}\u{7f}";

/// The text may have only printable characters and line ends.
fn require_printable_text(what: &str, text: &str) -> Result<()> {
    let hidden = |c: char| {
        c != '\n'
            && (c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'))
    };
    ensure!(
        !text.contains(hidden) && !text.lines().any(|line| line.starts_with("fake line")),
        "{what}: {text:?}"
    );
    Ok(())
}

#[test]
fn hostile_text_is_shown_escaped() -> Result<()> {
    let format = |number, options: lab::FlanneldOptions| {
        options.arg(["--log-format=text", "--log-format=json"][number]).arg("--v=1")
    };
    Scene::with_title("hostile text").net(HOST_GW).options(format).without_pods().without_daemons().run(|s| {
        let lease = |ip: &str, kind: &str| {
            let node = serde_json::json!({ "id": HOSTILE, "name": HOSTILE, "instance": HOSTILE, "rank": 1 });
            serde_json::json!({ "PublicIP": ip, "BackendType": kind, "BackendData": { "VtepMAC": HOSTILE }, "NodeID": node }).to_string()
        };
        s.put("10.5.7.0-24", &lease("192.168.56.107", HOSTILE))?;
        s.put("10.5.8.0-24", &lease("192.168.56.108", "host-gw"))?;
        s.put("10.5.9.0-24", &format!("{HOSTILE}{{"))?;
        s.put(&format!("10.5.6.0-24{HOSTILE}"), &lease("192.168.56.106", "host-gw"))?;
        s.start_daemons()?;
        s.wait_leases_applied()?;
        s.check_each_node(|node| {
            node.wait_log_contains("fake line")?;
            require_printable_text("log", &node.daemon()?.log())?;
            ["/status", "/readyz", "/healthz", "/metrics"].iter().try_for_each(|path| require_printable_text(path, &node.get_health_endpoint(path)?.1))
        })
    })
}

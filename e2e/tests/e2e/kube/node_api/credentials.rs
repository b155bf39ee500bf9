//! Tests of credentials that change while the daemon runs.

use anyhow::{Context, Result, ensure};
use lab::{Answer, FlanneldOptions, Lab, User, until};
use serde_json::Value;

use crate::kube::testbed::{ApiTestbed, VXLAN};

#[test]
fn token_file_is_read_again_after_a_change() -> Result<()> {
    Lab::run("Node API: tokens", |lab| {
        let mut bed = ApiTestbed::with_fake_api(lab, 1, VXLAN)?;
        bed.admin().create_node(&bed.node(1))?;
        let token = lab.ensure_folder("")?.join("token");
        // Editors end a file with a newline.
        std::fs::write(&token, "token-0\n")?;
        // The proxy accepts only the present token.
        let accept = |bed: &ApiTestbed, valid: String| {
            bed.proxies[0].set_judge(move |call| match call.authorization.as_deref() {
                Some(given) if given == format!("Bearer {valid}") => {
                    Answer::As(User::Flannel.token())
                }
                _ => Answer::failure_status_reply(401, "Unauthorized"),
            });
        };
        accept(&bed, "token-0".to_owned());
        let config = bed.api.write_kubeconfig_with_token_file(&bed.proxies[0].url(), &token)?;
        bed.options[0] = FlanneldOptions::kube("h1", &bed.net_conf)
            .arg(&format!("--kubeconfig-file={}", config.display()));
        bed.start_ready_daemons()?;
        for round in 1..=3 {
            std::fs::write(&token, format!("token-{round}\n"))?;
            accept(&bed, format!("token-{round}"));
            bed.proxies[0].close_open_connections();
            bed.require_new_peer_node_is_applied().with_context(|| format!("rotation {round}"))?;
        }
        let pid = bed.daemons[0].pid();
        ensure!(bed.daemons[0].is_running() && bed.daemons[0].pid() == pid, "it ended");
        Ok(())
    })
}

#[test]
fn certificate_authority_is_replaced_while_the_daemon_runs() -> Result<()> {
    Lab::run("Node API: authority", |lab| {
        let mut bed = ApiTestbed::with_real_api(lab, 1, VXLAN)?;
        bed.admin().create_node(&bed.node(1))?;
        // There is no proxy in between: the daemon verifies the server with the file that the kubeconfig names.
        let bundle = lab.ensure_folder("")?.join("bundle.pem");
        std::fs::copy(bed.api.certificates().ca(), &bundle)?;
        let config = bed.api.write_kubeconfig_with_authority(User::Flannel, &bundle)?;
        bed.options[0] = FlanneldOptions::kube("h1", &bed.net_conf)
            .arg(&format!("--kubeconfig-file={}", config.display()));
        bed.start_ready_daemons()?;
        let pid = bed.daemons[0].pid();
        bed.require_new_peer_node_is_applied()?;

        // First the daemon trusts both authorities. Then the server gets a certificate of the new one. Then the old one is removed.
        let old = std::fs::read_to_string(&bundle)?;
        bed.api.replace_certificates_for_restart()?;
        let new = std::fs::read_to_string(bed.api.certificates().ca())?;
        ensure!(old != new, "the same authority");
        std::fs::write(&bundle, format!("{old}{new}"))?;
        bed.api.stop()?;
        bed.api.start_after_stop()?;
        bed.require_new_peer_node_is_applied().context("with both authorities")?;
        std::fs::write(&bundle, new)?;
        bed.api.stop()?;
        bed.api.start_after_stop()?;
        bed.require_new_peer_node_is_applied().context("with the new authority")?;

        // The daemon does not trust a server whose authority is not in its file.
        bed.api.replace_certificates_for_restart()?;
        bed.api.stop()?;
        bed.api.start_after_stop()?;
        bed.create_peer_node(50)?;
        until("it has lost the API", || {
            let document = bed.daemons[0].get_status_api("/api/v1/node").unwrap_or_default().1;
            let document: Value = serde_json::from_str(&document).unwrap_or_default();
            !document["store"]["trouble"].is_null()
        })?;
        ensure!(
            bed.tunnel_destination(0, "10.244.50.0/24")?.is_none(),
            "it listened to a server that it cannot know"
        );
        std::fs::copy(bed.api.certificates().ca(), &bundle)?;
        bed.wait_tunnel_destinations("10.244.50.0/24", Some("192.168.57.50"))?;
        ensure!(bed.daemons[0].is_running() && bed.daemons[0].pid() == pid, "another process");
        Ok(())
    })
}

//! Tests of the lab's API server, and of the lab's proxy, which counts, stalls and answers requests and cuts connections.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Answer, ApiServer, Families, Host, Lab, NodeObject, Uplink, User, until};
use serde_json::json;

#[test]
fn api_server_and_proxy_answer_stall_and_restore() -> Result<()> {
    Lab::run("API server alone", |lab| {
        let lan = lab.switch("lan")?;
        let host = lab.host(
            "api",
            &[Uplink::enp0s8(&lan, 99)?.gateway("192.168.56.254")?],
        )?;
        let client = lab.host("h1", &[Uplink::enp0s8(&lan, 1)?])?;
        let mut api = ApiServer::start(&host, Families::V4)?;
        let admin = api.admin();
        admin.create_node(
            &NodeObject::new("n1")
                .pod_cidr("10.244.1.0/24")
                .internal(client.v4()?)
                .annotation("a", "b"),
        )?;
        let node = admin.node("n1")?;
        ensure!(
            node["spec"]["podCIDRs"] == json!(["10.244.1.0/24"])
                && node["status"]["addresses"][0]["address"] == "192.168.56.101",
            "{node}"
        );

        require_rights(&api)?;
        require_proxy(&api, &client)?;

        let snapshot = lab.folder("")?.join("snapshot");
        api.snapshot(&snapshot)?;
        api.admin().create_node(&NodeObject::new("n2"))?;
        api.restore(&snapshot)?;
        until("the snapshot's Nodes are back", || {
            api.admin().node("n1").is_ok()
        })?;
        ensure!(
            api.admin().node("n2").is_err(),
            "n2 outlived the snapshot's restore"
        );
        Ok(())
    })
}

/// Checks that the API server permits each user exactly the requests that the user's role allows.
fn require_rights(api: &ApiServer) -> Result<()> {
    let status = |user: User, path: &str| {
        api.client(user)
            .request("GET", path, None)
            .map(|(code, _)| code)
    };
    ensure!(
        status(User::Flannel, "/api/v1/nodes/n1")? == 200
            && status(User::Nobody, "/api/v1/nodes/n1")? == 403,
        "rights"
    );
    ensure!(
        status(User::OldFlannel, "/api/v1/nodes/n1")? == 403
            && status(User::OldFlannel, "/api/v1/nodes")? == 200,
        "old rights"
    );
    ensure!(
        api.kubectl(&["get", "nodes", "--output=name"])?.trim() == "node/n1",
        "kubectl"
    );
    Ok(())
}

/// Checks from a host that the proxy counts, answers, stalls and cuts off requests.
fn require_proxy(api: &ApiServer, client: &Host) -> Result<()> {
    let proxy = api.proxy(8001)?;
    let url = proxy.url();
    let ask = |path: &str, patience: &str| -> Result<String> {
        let args = [
            "--silent",
            "--max-time",
            patience,
            "--write-out",
            "%{http_code}",
            &format!("{url}{path}"),
        ];
        Ok(String::from_utf8(
            client.netns().output("curl", &args)?.stdout,
        )?)
    };
    let answer = |path: &str| ask(path, "60");
    let text = answer("/api/v1/nodes/n1")?;
    ensure!(
        text.ends_with("200") && text.contains("10.244.1.0/24"),
        "{text}"
    );
    let calls = proxy.calls_of(client.v4()?);
    let call = calls.first().context("a call")?;
    ensure!(
        calls.len() == 1
            && call.status == 200
            && call.agent.starts_with("curl")
            && call.method == "GET",
        "{calls:?}"
    );
    proxy.on(|call| {
        if call.is_of_nodes() {
            Answer::status(429, "TooManyRequests")
        } else {
            Answer::Pass
        }
    });
    ensure!(
        answer("/api/v1/nodes?limit=1")?.ends_with("429")
            && answer("/api/v1/nodes/n1")?.ends_with("200"),
        "answers"
    );
    proxy.on(|_| Answer::As("of nobody".to_owned()));
    ensure!(
        answer("/api/v1/nodes/n1")?.ends_with("401"),
        "a wrong token"
    );
    proxy.pass();
    proxy.stall(true);
    let start = Instant::now();
    ensure!(
        ask("/api/v1/nodes/n1", "2")?.ends_with("000") && start.elapsed() >= Duration::from_secs(2),
        "it answers while it is stalled"
    );
    proxy.cut();
    ensure!(
        answer("/api/v1/nodes/n1")?.ends_with("000"),
        "it answers while it is cut"
    );
    proxy.pass();
    ensure!(
        answer("/api/v1/nodes/n1")?.ends_with("200"),
        "it does not come back"
    );
    Ok(())
}

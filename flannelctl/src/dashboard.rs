//! `flannelctl dashboard`: opens the status page of a node, or prints how to reach it.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use kube::ResourceExt;
use node_api::{Node, Status};
use terminal::out;

use crate::ask::{self, AskError};
use crate::kubernetes;
use crate::place::Place;
use crate::remote::RemoteFlags;
use crate::store;

/// Unless `--status-port` is set.
const DEFAULT_URL: &str = "http://127.0.0.1:8474/";

/// Options of `flannelctl dashboard`: the node, and whether to open the node's status page.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only prints the status page's address, even if a browser could open the page.
    #[arg(long)]
    print: bool,
    #[command(flatten)]
    remote: RemoteFlags,
    #[command(flatten)]
    place: Place,
}

/// Opens the status page, or prints its address and the command that reaches it from another machine.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(node) = args.remote.named()? {
        out::print(port_forward(&args.remote, node)?);
        return Ok(ExitCode::SUCCESS);
    }
    let found = match ask::node(&args.place.subnet_file, false) {
        Ok(node) => Page::of(&node)?,
        // The page needs no rights. Only the socket, which names its address, does.
        Err(AskError::Denied(_)) if is_served(DEFAULT_URL) => {
            Page { url: DEFAULT_URL.to_owned(), node: hostname() }
        }
        Err(why) => bail!(why),
    };
    if !args.print && can_open() && open(&found.url) {
        out::print(format!("opened {}", found.url));
    } else {
        out::print(found.text(std::env::var("POD_NAME").ok().as_deref()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The status page of a node.
#[derive(Debug)]
struct Page {
    url: String,
    node: String,
}

impl Page {
    fn of(node: &Node) -> Result<Self> {
        let url = node.page.clone().with_context(|| {
            format!(
                "flanneld on {} serves no status page: --status-port is 0 or taken; run flannelctl status",
                node.node
            )
        })?;
        Ok(Self { url, node: node.node.clone() })
    }

    fn port(&self) -> &str {
        let port = self.url.trim_end_matches('/').rsplit(':').next();
        port.unwrap_or_default()
    }

    /// The page's address, and the command with which another machine reaches it. `pod` is the pod in which
    /// this program runs.
    fn text(&self, pod: Option<&str>) -> String {
        let (url, port, node) = (&self.url, self.port(), &self.node);
        let tunnel = match pod {
            Some(pod) => format!("kubectl -n {} port-forward pod/{pod} {port}", namespace()),
            None => format!("ssh -L {port}:127.0.0.1:{port} {node}"),
        };
        format!(
            "The status page of {node}:\n  {url}\nFrom another machine, run this and open http://127.0.0.1:{port}/ there:\n  {tunnel}"
        )
    }
}

/// The namespace of the pod in which this program runs.
fn namespace() -> String {
    std::env::var("POD_NAMESPACE").unwrap_or_else(|_| "kube-flannel".to_owned())
}

fn hostname() -> String {
    let name = nix::unistd::gethostname().ok();
    name.and_then(|name| name.into_string().ok()).unwrap_or_default()
}

/// Whether a program on this host listens at the URL.
fn is_served(url: &str) -> bool {
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    std::net::TcpStream::connect(address).is_ok()
}

/// Whether this user has a graphical display on this host and may start a browser.
fn can_open() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let has_screen = is_set("DISPLAY") || is_set("WAYLAND_DISPLAY");
    // Browsers refuse to run as root.
    has_screen && !is_set("SSH_CONNECTION") && !nix::unistd::Uid::effective().is_root()
}

fn open(url: &str) -> bool {
    let mut opener = Command::new("xdg-open");
    opener.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    opener.status().is_ok_and(|status| status.success())
}

/// The commands that reach the status page of a Kubernetes node.
fn port_forward(remote: &RemoteFlags, node: &str) -> Result<String> {
    store::run(async {
        let cluster = remote.cluster().connect().await?;
        let pods = cluster.pods().await?;
        let pod = kubernetes::on_node(&pods, node)?;
        let command = ["flannelctl", "status", "-o", "json"];
        let printed = kubernetes::exec(&cluster.client, pod, &command)
            .await
            .with_context(|| node.to_owned())?;
        let status: Status = serde_json::from_slice(&printed.out)
            .with_context(|| format!("{node}: flannelctl in its pod printed no status"))?;
        let document = status
            .node
            .with_context(|| format!("flanneld is not running on {node}; run flannelctl doctor"))?;
        let page = Page::of(&document)?;
        let (port, name) = (page.port(), pod.name_any());
        let namespace = pod.namespace().unwrap_or_default();
        Ok(format!(
            "The status page of {node}: run this command and open http://127.0.0.1:{port}/\n  kubectl -n {namespace} port-forward pod/{name} {port}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_the_way_from_afar() {
        let node = Node {
            node: "node-1".to_owned(),
            page: Some("http://127.0.0.1:9000/".to_owned()),
            ..Node::default()
        };
        let page = Page::of(&node).unwrap();
        assert_eq!(
            page.text(None),
            "The status page of node-1:\n  http://127.0.0.1:9000/\nFrom another machine, run this and open http://127.0.0.1:9000/ there:\n  ssh -L 9000:127.0.0.1:9000 node-1"
        );
        assert!(
            page.text(Some("kube-flannel-ds-x"))
                .ends_with("kubectl -n kube-flannel port-forward pod/kube-flannel-ds-x 9000")
        );
        let none = Page::of(&Node::default()).unwrap_err();
        assert!(none.to_string().contains("--status-port"), "{none}");
    }
}

//! Tests of a real daemon's status page in a real browser. `flanneld/tests/page.rs` tests the page with clusters of up to 1000 nodes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use lab::{Netns, Scene, until_ok};
use serde_json::{Value, json};

/// The browser then gives up.
const HANGS_MS: u64 = 120_000;

/// In a host's network namespace. It checks the page as `e2e/browser/check.mjs` describes.
struct Browser {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Browser {
    fn start(netns: &Netns, job: &Value) -> Result<Self> {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("browser/check.mjs");
        let modules = lab::binaries::browser_packages_folder()?;
        let mut child = netns.run(|| {
            Command::new("node")
                .arg(script)
                .arg("-")
                .env("CHROMIUM", "/usr/bin/chromium")
                .env("BROWSER_MODULES", modules)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
        })??;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let mut browser = Self { child, input, output };
        browser.send_line(&job.to_string())?;
        Ok(browser)
    }

    fn send_line(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.input, "{line}")?)
    }

    /// Waits until the browser prints the line.
    fn wait_for_line(&mut self, wanted: &str) -> Result<()> {
        let mut line = String::new();
        while line.trim() != wanted {
            line.clear();
            let read = self.output.read_line(&mut line)?;
            ensure!(read > 0, "the browser ended before it printed {wanted}");
            ensure!(!line.contains("\"ok\":false"), "{line}");
        }
        Ok(())
    }

    /// Waits until the browser ends.
    fn wait_for_report(mut self) -> Result<Value> {
        let mut last = String::new();
        for line in (&mut self.output).lines() {
            last = line?;
        }
        let report: Value = serde_json::from_str(&last).with_context(|| last.clone())?;
        self.child.wait()?;
        ensure!(report["ok"] == true, "{report:#}");
        Ok(report)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn page_reports_a_fault_and_the_end_of_the_daemon() -> Result<()> {
    Scene::with_title("page").nodes(3).run(|s| {
        let says = |text: &str| {
            until_ok(text, || {
                let (status, page) = s[0].daemon()?.get_status_api("/")?;
                ensure!(status == 200 && page.contains(text), "{status}: {page}");
                Ok(())
            })
        };
        says("All 3 nodes reach each other")?;
        s[2].sh("nft 'table ip broken { chain in { type filter hook input priority -200; udp dport 8472 drop; }; }'")?;
        says("The overlay to h3 is cut")?;
        let job = json!({
            "url": "http://127.0.0.1:8474/",
            "variants": [
                {"width": 1280, "height": 900, "scheme": "light"},
                {"width": 390, "height": 800, "scheme": "dark"},
            ],
            "expect": {
                "title_contains": "The overlay to h3 is cut",
                "texts": ["overlay cut", "flannelctl probe", "h2", "This node", "named by --iface"],
            },
            "until_silent_ms": HANGS_MS,
            "until_back_ms": HANGS_MS,
        });
        let mut browser = Browser::start(s[0].netns(), &job)?;
        browser.wait_for_line("open")?;
        s[0].kill_daemon()?;
        browser.send_line("killed")?;
        browser.wait_for_line("silent")?;
        s[0].start_daemon()?;
        browser.send_line("started")?;
        browser.wait_for_report().map(drop)
    })
}

#[test]
fn demonstration_shows_the_fault_on_the_page_until_its_input_ends() -> Result<()> {
    let mut lab = Command::new(lab::binaries::flannel_binary("flannelctl")?)
        .args(["lab", "--status", "--hosts", "4"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let input = lab.stdin.take();
    let mut output = BufReader::new(lab.stdout.take().context("no output")?).lines();
    let mut printed = String::new();
    let address: SocketAddr = loop {
        let line = output.next().with_context(|| printed.clone())??;
        printed.push_str(&line);
        printed.push('\n');
        let url = line.split("http://").nth(1);
        if let Some(address) = url.and_then(|url| url.split('/').next()?.parse().ok()) {
            break address;
        }
    };
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET / HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    ensure!(page.contains("The overlay to h4 is cut"), "{page}");
    drop(input);
    for line in output {
        printed.push_str(&line?);
    }
    ensure!(lab.wait()?.success(), "{printed}");
    Ok(())
}

/// `make soak` runs this test for ten minutes, with release builds of the programs. The browser checks that the page does not grow.
#[test]
#[ignore = "part of make soak"]
fn page_left_open_does_not_grow() -> Result<()> {
    Scene::with_title("page left open").nodes(3).run(|s| {
        let resident = || {
            s[0].sh(&format!(
                "sed -n 's/^VmRSS: *\\([0-9]*\\) kB/\\1/p' /proc/{}/status",
                s[0].daemon()?.pid()
            ))
        };
        let open = |seconds: u64| {
            let job = json!({
                "url": "http://127.0.0.1:8474/",
                "variants": [{"width": 1280, "height": 900, "scheme": "light"}],
                "open_ms": seconds * 1000,
            });
            Browser::start(s[0].netns(), &job)?.wait_for_report()
        };
        // The first page also costs what later ones do not.
        open(5)?;
        let before: u64 = resident()?.trim().parse()?;
        open(lab::env_number("FLANNEL_TEST_OPEN", 60))?;
        let after: u64 = resident()?.trim().parse()?;
        ensure!(after < before + 2048, "the daemon grew from {before} to {after} KiB");
        Ok(())
    })
}

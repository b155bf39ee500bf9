//! The images are complete, run with few rights, have the same bytes in two builds, and load into containerd.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};
use lab::{Lab, binaries, require_success, stdout_and_stderr, until};
use serde_json::Value;

use super::{read_repository_file, repository_path};

/// stdout and stderr. Fails if the program fails.
fn successful_output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    require_success(&format!("{command:?}"), &output)?;
    Ok(stdout_and_stderr(&output))
}

/// The images hold the programs under test.
pub(super) fn build_images(images: &Path) -> Result<()> {
    let programs = binaries::flannel_binary("flanneld")?;
    let programs = programs.parent().context("a folder")?;
    let mut build = Command::new(repository_path("conf/image/build.sh"));
    successful_output(build.env("PROFILE", "dev").env("PROGRAMS", programs).env("IMAGES", images))
        .map(drop)
}

fn read_json_from_archive(archive: &Path, name: &str) -> Result<Value> {
    Ok(serde_json::from_str(&successful_output(
        Command::new("tar").arg("-xOf").arg(archive).arg(name),
    )?)?)
}

/// Unpacks the image's files. The archive's OCI index and its Docker index agree.
fn unpack_image(archive: &Path, folder: &Path, name: &str) -> Result<PathBuf> {
    let reference = format!("docker.io/flannel-rs/{name}:v{}", env!("CARGO_PKG_VERSION"));
    let index = read_json_from_archive(archive, "index.json")?;
    let entry = &index["manifests"][0];
    ensure!(entry["annotations"]["io.containerd.image.name"] == reference.as_str(), "{index}");
    let blob = |digest: &Value| {
        digest.as_str().map(|text| format!("blobs/{}", text.replace(':', "/"))).context("a digest")
    };
    let manifest = read_json_from_archive(archive, &blob(&entry["digest"])?)?;
    let (config, layer) =
        (blob(&manifest["config"]["digest"])?, blob(&manifest["layers"][0]["digest"])?);
    let docker = read_json_from_archive(archive, "manifest.json")?;
    ensure!(
        docker[0]["RepoTags"][0].as_str().is_some_and(|tag| reference.ends_with(tag)),
        "{docker}"
    );
    ensure!(
        docker[0]["Config"] == config.as_str() && docker[0]["Layers"][0] == layer.as_str(),
        "{docker}"
    );
    let root = folder.join(format!("{name}-root"));
    std::fs::create_dir_all(&root)?;
    successful_output(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(folder))?;
    successful_output(
        Command::new("tar").arg("-xzf").arg(folder.join(layer)).arg("-C").arg(&root),
    )?;
    Ok(root)
}

/// Runs in a chroot of the image and in a network namespace of its own.
fn run_in_chroot(root: &Path, script: &str) -> Result<String> {
    let mut words = script.split(' ');
    successful_output(Command::new("unshare").args(["--net", "chroot"]).arg(root).args(&mut words))
}

/// A drop ends the process.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a containerd of its own. The result is the image names that it lists.
fn import_and_list_images(folder: &Path, archives: &[PathBuf]) -> Result<String> {
    let folder = folder.join("containerd");
    std::fs::create_dir_all(&folder)?;
    let (socket, config) = (folder.join("sock"), folder.join("config.toml"));
    let disabled = [
        "grpc.v1.cri",
        "snapshotter.v1.btrfs",
        "snapshotter.v1.zfs",
        "snapshotter.v1.devmapper",
        "snapshotter.v1.aufs",
    ];
    let disabled: Vec<String> =
        disabled.iter().map(|name| format!("\"io.containerd.{name}\"")).collect();
    let place = folder.display();
    let text = format!(
        "version = 2\nroot = \"{place}/root\"\nstate = \"{place}/state\"\ndisabled_plugins = [{}]\n[grpc]\naddress = \"{place}/sock\"\n[ttrpc]\naddress = \"{place}/ttrpc\"\n",
        disabled.join(", ")
    );
    std::fs::write(&config, text)?;
    let log = std::fs::File::create(folder.join("log"))?;
    let _daemon = Ended(
        Command::new(binaries::cached_file("containerd/usr/bin/containerd")?)
            .arg("--config")
            .arg(&config)
            .stderr(log)
            .spawn()?,
    );
    let ctr = || -> Result<Command> {
        let mut command = Command::new(binaries::cached_file("containerd/usr/bin/ctr")?);
        command.arg("--address").arg(&socket).args(["--namespace", "k8s.io", "images"]);
        Ok(command)
    };
    let list = || successful_output(ctr()?.args(["list", "--quiet"]));
    until("containerd answers", || list().is_ok())?;
    for archive in archives {
        successful_output(ctr()?.args(["import", "--snapshotter", "native"]).arg(archive))?;
    }
    list()
}

/// Manifests and programs expect these files in the daemon's image.
const DAEMON: &[&str] = &[
    "opt/bin/flanneld",
    "opt/bin/flannelctl",
    "opt/bin/install-conf",
    "bin/cp",
    "bin/rm",
    "bin/pause",
    "usr/sbin/nft",
    "etc/protocols",
    "usr/share/flannel/packages",
    "usr/share/doc/iptables/copyright",
];

#[test]
fn images_are_complete_reproducible_and_loadable() -> Result<()> {
    Lab::run("images", |lab| {
        let folder = lab.ensure_folder("images")?;
        let archives = build_twice_and_require_equal(&folder)?;
        let [daemon, plugin] = &archives;
        let root = unpack_image(daemon, &folder, "flannel")?;
        require_daemon_files(&root)?;
        require_programs_run(&root)?;
        require_iptables(&root)?;

        let root = unpack_image(plugin, &folder, "flannel-cni-plugin")?;
        run_in_chroot(&root, "cp -p -v /flannel /flannel.new")?;
        ensure!(
            std::fs::read(root.join("flannel"))? == std::fs::read(root.join("flannel.new"))?,
            "the copy differs"
        );
        require_names_match_manifests(&import_and_list_images(&folder, &archives)?)
    })
}

/// Both builds have the same bytes. The result is the first archives.
fn build_twice_and_require_equal(folder: &Path) -> Result<[PathBuf; 2]> {
    let (first, second) = (folder.join("first"), folder.join("second"));
    build_images(&first)?;
    build_images(&second)?;
    let archives = ["flannel", "flannel-cni-plugin"].map(|name| first.join(format!("{name}.tar")));
    for archive in &archives {
        let again = second.join(archive.file_name().context("a name")?);
        ensure!(
            std::fs::read(archive)? == std::fs::read(&again)?,
            "{} differs from {}",
            archive.display(),
            again.display()
        );
    }
    Ok(archives)
}

fn require_daemon_files(root: &Path) -> Result<()> {
    for path in DAEMON {
        ensure!(root.join(path).exists(), "the daemon's image has no {path}");
    }
    // A script in it could not run.
    ensure!(!root.join("opt/bin/mk-docker-opts.sh").exists(), "there is a script without a shell");
    ensure!(
        !root.join("bin/sh").exists() && !root.join("usr/bin").exists(),
        "there is more in the image than is needed"
    );
    Ok(())
}

fn require_programs_run(root: &Path) -> Result<()> {
    let version = run_in_chroot(root, "/opt/bin/flanneld --version")?;
    ensure!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    run_in_chroot(root, "/opt/bin/flannelctl --version")?;
    run_in_chroot(
        root,
        "/usr/sbin/nft add table inet x; add chain inet x c { type nat hook postrouting priority 0; }; add rule inet x c meta l4proto udp masquerade fully-random",
    )
    .map(drop)
}

/// The image contains each variant of iptables, and each can write a rule with the extensions that flanneld uses.
fn require_iptables(root: &Path) -> Result<()> {
    for (family, net) in [("iptables", "10.244.0.0/16"), ("ip6tables", "fd00:244::/48")] {
        for (variant, named) in [("", "nf_tables"), ("-nft", "nf_tables"), ("-legacy", "legacy")] {
            let program = format!("/usr/sbin/{family}{variant}");
            let version = run_in_chroot(root, &format!("{program}-save --version"))?;
            ensure!(version.contains(named), "{family}{variant}: {version}");
            run_in_chroot(root, &format!("{program}-restore --version"))?;
            run_in_chroot(
                root,
                &format!(
                    "{program} -t nat -A POSTROUTING -s {net} -m comment --comment x -j MASQUERADE --random-fully"
                ),
            )?;
        }
    }
    Ok(())
}

/// The manifests name the images in the archives.
fn require_names_match_manifests(names: &str) -> Result<()> {
    let names: BTreeSet<&str> = names.lines().collect();
    let texts = [
        read_repository_file("conf/kube-flannel.yml")?,
        read_repository_file("conf/kube-flannel-cleanup.yml")?,
    ];
    let wanted: BTreeSet<&str> = texts
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(|line| line.trim().strip_prefix("image: "))
        .collect();
    ensure!(names == wanted, "containerd has {names:?}, the manifests name {wanted:?}");
    Ok(())
}

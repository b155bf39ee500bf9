//! Folders that contain links to programs and serve as a daemon's `PATH`, to imitate the programs of another machine.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::lab::Lab;

/// The variant of `iptables` on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Xtables {
    Nft,
    /// The legacy ip_tables interface.
    Legacy,
}

impl Xtables {
    /// `nft` or `legacy`, as in the programs' names.
    pub fn name(self) -> &'static str {
        match self {
            Xtables::Nft => "nft",
            Xtables::Legacy => "legacy",
        }
    }
}

/// Serves as a daemon's `PATH`.
#[derive(Debug, Clone)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// An empty folder, in which the daemon finds no program.
    pub fn create_empty(lab: &Lab, name: &str) -> Result<Programs> {
        Ok(Programs { folder: lab.ensure_folder(&format!("programs-{name}"))? })
    }

    /// The value of `PATH`.
    pub fn path(&self) -> String {
        self.folder.to_string_lossy().into_owned()
    }

    /// A link to this machine's `nft`.
    pub fn with_nft(self) -> Result<Programs> {
        self.link("nft", &installed_program_path("nft")?)?;
        Ok(self)
    }

    /// `iptables`, `ip6tables` and the related programs of this variant, as Debian's alternatives set them.
    pub fn with_iptables(self, which: Xtables) -> Result<Programs> {
        let program = installed_program_path(&format!("xtables-{}-multi", which.name()))?;
        for family in ["iptables", "ip6tables"] {
            for companion in ["", "-save", "-restore"] {
                self.link(&format!("{family}{companion}"), &program)?;
            }
        }
        Ok(self)
    }

    /// Adds the programs under their full names, such as `iptables-legacy-save`.
    pub fn with_full_iptables_names(self, which: Xtables) -> Result<Programs> {
        let program = installed_program_path(&format!("xtables-{}-multi", which.name()))?;
        for family in ["iptables", "ip6tables"] {
            for companion in ["", "-save", "-restore"] {
                self.link(&format!("{family}-{}{companion}", which.name()), &program)?;
            }
        }
        Ok(self)
    }

    /// `nft` and all iptables programs of Debian, with the alternatives set to this variant.
    pub fn with_both_iptables_variants(lab: &Lab, name: &str, which: Xtables) -> Result<Programs> {
        Programs::create_empty(lab, name)?
            .with_nft()?
            .with_iptables(which)?
            .with_full_iptables_names(Xtables::Nft)?
            .with_full_iptables_names(Xtables::Legacy)
    }

    /// Replaces the link of the same name, if any.
    pub fn with_script(self, name: &str, text: &str) -> Result<Programs> {
        let path = self.folder.join(name);
        if path.is_symlink() {
            std::fs::remove_file(&path)?;
        }
        write_script(&path, text)?;
        Ok(self)
    }

    fn link(&self, name: &str, program: &Path) -> Result<()> {
        symlink(program, self.folder.join(name))
            .with_context(|| format!("linking {name} in {}", self.folder.display()))
    }
}

/// Makes it executable.
pub fn write_script(path: &Path, text: &str) -> Result<()> {
    // Another process writes the file. The kernel does not execute a file that any process has open for writing.
    // A child that another thread is just starting would inherit the open file from this process.
    let mut writer = Command::new("sh")
        .args(["-ec", "cat > \"$0\"; chmod +x \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = writer.stdin.take() {
        stdin.write_all(text.as_bytes())?;
    }
    ensure!(writer.wait()?.success(), "writing {}", path.display());
    Ok(())
}

fn installed_program_path(name: &str) -> Result<PathBuf> {
    let folders = ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"];
    let found =
        folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    found.with_context(|| format!("cannot find {name} in {folders:?}; run `make setup`"))
}

//! Which programs a daemon finds: folders of links that stand for another machine's `PATH`.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::lab::Lab;

/// The variant of `iptables` on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Xtables {
    /// Programs that speak to nf_tables.
    Nft,
    /// Programs that speak to the old tables.
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

/// A folder to be a daemon's `PATH`.
#[derive(Debug, Clone)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// An empty folder: the daemon finds no program.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn none(lab: &Lab, name: &str) -> Result<Programs> {
        Ok(Programs {
            folder: lab.folder(&format!("programs-{name}"))?,
        })
    }

    /// The folder, as the value of `PATH`.
    pub fn path(&self) -> String {
        self.folder.to_string_lossy().into_owned()
    }

    /// Adds `nft` as this machine has it.
    ///
    /// # Errors
    /// When it is not installed here.
    pub fn with_nft(self) -> Result<Programs> {
        self.link("nft", &installed("nft")?)?;
        Ok(self)
    }

    /// Adds `iptables`, `ip6tables` and their companions in this variant, as Debian's alternatives point.
    ///
    /// # Errors
    /// When it is not installed here, or the folder has it already.
    pub fn with_iptables(self, which: Xtables) -> Result<Programs> {
        let program = installed(&format!("xtables-{}-multi", which.name()))?;
        for family in ["iptables", "ip6tables"] {
            for companion in ["", "-save", "-restore"] {
                self.link(&format!("{family}{companion}"), &program)?;
            }
        }
        Ok(self)
    }

    /// Adds the programs of a variant under their own names, such as `iptables-legacy-save`.
    ///
    /// # Errors
    /// When it is not installed here, or the folder has it already.
    pub fn with_variant(self, which: Xtables) -> Result<Programs> {
        let program = installed(&format!("xtables-{}-multi", which.name()))?;
        for family in ["iptables", "ip6tables"] {
            for companion in ["", "-save", "-restore"] {
                self.link(&format!("{family}-{}{companion}", which.name()), &program)?;
            }
        }
        Ok(self)
    }

    /// All programs that Debian installs, with the alternatives pointing to this variant.
    ///
    /// # Errors
    /// When something is not installed here.
    pub fn all(lab: &Lab, name: &str, which: Xtables) -> Result<Programs> {
        Programs::none(lab, name)?
            .with_nft()?
            .with_iptables(which)?
            .with_variant(Xtables::Nft)?
            .with_variant(Xtables::Legacy)
    }

    /// Adds a shell script, in place of a program of that name.
    ///
    /// # Errors
    /// When it cannot be written.
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

/// Writes a program that may be run at once.
///
/// # Errors
/// When it cannot be written.
pub fn write_script(path: &Path, text: &str) -> Result<()> {
    // By another process: the kernel does not run a file that this one has open, be it in a child that another thread is just starting.
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

fn installed(name: &str) -> Result<PathBuf> {
    let folders = ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"];
    let found = folders
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.exists());
    found.with_context(|| format!("there is no {name} in {folders:?}: `make setup` gets it"))
}

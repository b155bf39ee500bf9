//! The archive: a compressed tar file of limited size that only its owner may read.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

/// The most that goes in, in bytes before compression: the file stays smaller than 20 MB even if nothing compresses.
const LIMIT: u64 = 19 * 1000 * 1000;

pub(super) struct Archive {
    builder: Builder<GzEncoder<File>>,
    path: PathBuf,
    /// The top folder in the archive.
    folder: String,
    now: u64,
    left: u64,
}

impl Archive {
    /// Creates the file.
    ///
    /// # Errors
    /// The file exists, or cannot be created.
    pub(super) fn create(path: &Path, folder: &str) -> Result<Archive> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        let file = file.with_context(|| format!("cannot create {}", path.display()))?;
        let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
        let builder = Builder::new(GzEncoder::new(file, Compression::default()));
        Ok(Archive {
            builder,
            path: path.to_owned(),
            folder: folder.to_owned(),
            now,
            left: LIMIT,
        })
    }

    /// Adds a file, cut to the room that is left.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub(super) fn add(&mut self, name: &str, text: &str) -> Result<()> {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX);
        let bytes = text
            .as_bytes()
            .get(..text.len().min(room))
            .unwrap_or_default();
        self.left -= bytes.len() as u64;
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.now);
        let added = self
            .builder
            .append_data(&mut header, format!("{}/{name}", self.folder), bytes);
        added.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Completes the archive. Returns its size in bytes.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub(super) fn finish(self) -> Result<u64> {
        let path = self.path;
        let end = || -> std::io::Result<u64> {
            let mut file = self.builder.into_inner()?.finish()?;
            file.flush()?;
            Ok(file.metadata()?.len())
        };
        end().with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn archive_round_trips_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.tar.gz");
        let mut archive = Archive::create(&path, "b").unwrap();
        archive.add("a/one.txt", "one\n").unwrap();
        let big = "x".repeat(15_000_000);
        archive.add("big", &big).unwrap();
        archive.add("more", &big).unwrap();
        archive.add("none", "text").unwrap();
        assert!(archive.finish().unwrap() < 20_000_000);
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let mut read = tar::Archive::new(flate2::read::GzDecoder::new(File::open(&path).unwrap()));
        let found: Vec<(String, usize)> = read
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                (entry.path().unwrap().display().to_string(), text.len())
            })
            .collect();
        let want = [
            ("b/a/one.txt", 4),
            ("b/big", 15_000_000),
            ("b/more", 3_999_996),
            ("b/none", 0),
        ];
        assert_eq!(found, want.map(|(name, size)| (name.to_owned(), size)));
        assert!(
            Archive::create(&path, "b").is_err(),
            "nothing is overwritten"
        );
    }
}

//! The archive: a compressed tar file of limited size that only its owner may read.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

/// In bytes before compression. The file stays smaller than 20 MB even if the contents do not compress.
const LIMIT: u64 = 19 * 1000 * 1000;

pub(super) struct Archive {
    builder: Builder<GzEncoder<Counted>>,
    /// For error messages.
    place: String,
    /// The top folder in the archive.
    folder: String,
    now: u64,
    left: u64,
}

impl Archive {
    /// Fails if the file already exists.
    pub(super) fn create(path: &Path, folder: &str) -> Result<Archive> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.with_context(|| {
            format!(
                "cannot create {}; choose another file with --file, or standard output with --file=-",
                path.display()
            )
        })?;
        Ok(Archive::to(Box::new(file), path.display().to_string(), folder))
    }

    pub(super) fn on_stdout(folder: &str) -> Archive {
        let place = "standard output".to_owned();
        Archive::to(Box::new(std::io::stdout()), place, folder)
    }

    fn to(writer: Box<dyn Write>, place: String, folder: &str) -> Archive {
        let counted = Counted { writer, bytes: 0 };
        Archive {
            builder: Builder::new(GzEncoder::new(counted, Compression::default())),
            place,
            folder: folder.to_owned(),
            now: u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0),
            left: LIMIT,
        }
    }

    /// Truncates the file to the remaining space.
    pub(super) fn add(&mut self, name: &str, text: &str) -> Result<()> {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX);
        let bytes = text.as_bytes().get(..text.len().min(room)).unwrap_or_default();
        self.left -= bytes.len() as u64;
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.now);
        let added = self.builder.append_data(&mut header, format!("{}/{name}", self.folder), bytes);
        added.with_context(|| format!("cannot write {}", self.place))
    }

    /// Completes the archive, and returns its size in bytes.
    pub(super) fn finish(self) -> Result<u64> {
        let place = self.place;
        let end = || -> std::io::Result<u64> {
            let mut out = self.builder.into_inner()?.finish()?;
            out.flush()?;
            Ok(out.bytes)
        };
        end().with_context(|| format!("cannot write {place}"))
    }
}

/// Counts the written bytes.
struct Counted {
    writer: Box<dyn Write>,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.writer.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
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
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
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
        let want =
            [("b/a/one.txt", 4), ("b/big", 15_000_000), ("b/more", 3_999_996), ("b/none", 0)];
        assert_eq!(found, want.map(|(name, size)| (name.to_owned(), size)));
        assert!(Archive::create(&path, "b").is_err(), "nothing is overwritten");
    }
}

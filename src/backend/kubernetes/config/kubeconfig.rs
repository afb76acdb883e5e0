//! Kubeconfigs, read and merged as kubectl does: what several files have, the first one has
//! (<https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/>).

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::yaml;
use crate::backend::io_text;
use crate::backend::net::Pem;
use crate::backend::url::{Environment, UrlError};
use crate::input;

/// Longer than any kubeconfig: each certificate in it has a few thousand bytes.
const LONGEST: u64 = 4 << 20;

/// The kubeconfigs that exist, in the order of their precedence.
pub(super) struct Kubeconfig(pub Vec<(PathBuf, Value)>);

/// A context, cluster or user of a kubeconfig.
pub(super) struct Part<'a> {
    pub value: &'a Value,
    file: &'a Path,
    /// What it is, such as `user 'admin'`.
    kind: String,
}

impl Kubeconfig {
    /// Reads the files in `KUBECONFIG`, or else `~/.kube/config`, as far as they exist.
    ///
    /// # Errors
    /// One of them cannot be read, or is not YAML; or `KUBECONFIG` names only files that do not exist. For kubectl that is as if
    /// it named none; but then a lock would be in the cluster of a pod, instead of that of the file with the wrong name.
    pub fn read(environment: Environment<'_>) -> Result<Kubeconfig, UrlError> {
        let set = |name: &str| environment(name).filter(|value| !value.is_empty());
        let named = set("KUBECONFIG");
        let paths: Vec<PathBuf> = match &named {
            Some(list) => std::env::split_paths(list).filter(|path| !path.as_os_str().is_empty()).collect(),
            None => set("HOME").map(|home| Path::new(&home).join(".kube/config")).into_iter().collect(),
        };
        let (mut files, mut missing) = (Vec::new(), None);
        for path in paths {
            let wrong = |why: &str| UrlError::new(format!("{}: {why}", path.display()));
            let bytes = match input::read(&path, LONGEST) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    missing = missing.or_else(|| Some(wrong(&io_text(&error))));
                    continue;
                }
                read => read.map_err(|error| wrong(&io_text(&error)))?,
            };
            let value = yaml::parse(&String::from_utf8_lossy(&bytes));
            let value = value.map_err(|why| wrong(&format!("not a kubeconfig: {why}")))?;
            files.push((std::path::absolute(&path).unwrap_or_else(|_| path.clone()), value));
        }
        match missing.filter(|_| named.is_some() && files.is_empty()) {
            Some(error) => Err(error),
            None => Ok(Kubeconfig(files)),
        }
    }

    /// Returns the name of the current context, if one is set.
    pub fn current_context(&self) -> Option<&str> {
        let mut names = self.0.iter().filter_map(|(_, value)| value["current-context"].as_str());
        names.find(|name| !name.is_empty())
    }

    /// Returns the context, cluster or user of a name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(&self, kind: &str, name: &str) -> Result<Part<'_>, UrlError> {
        for (file, value) in &self.0 {
            let mut entries = value[format!("{kind}s")].as_array().into_iter().flatten();
            if let Some(entry) = entries.find(|entry| entry["name"] == name) {
                return Ok(Part { value: &entry[kind], file, kind: format!("{kind} '{name}'") });
            }
        }
        let text = format!("there is no {kind} '{name}' in {}: see kubectl config view", self.files());
        Err(UrlError::new(text))
    }

    /// Returns the files, in words.
    pub fn files(&self) -> String {
        self.0.iter().map(|(file, _)| file.display().to_string()).collect::<Vec<_>>().join(" or ")
    }
}

impl<'a> Part<'a> {
    /// Returns what is wrong with it, and where it is.
    pub fn wrong(&self, why: &str) -> UrlError {
        UrlError::new(format!("{self}: {why}"))
    }

    /// Returns what is below a key of it.
    pub fn below(&self, key: &str) -> Option<Part<'a>> {
        let (value, kind) = (self.value.get(key)?, format!("{}: {key}", self.kind));
        Some(Part { value, kind, ..*self })
    }

    /// Returns a text that is not empty, if it has it.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.value[key].as_str().filter(|text| !text.is_empty())
    }

    /// Returns a text that it has to have.
    ///
    /// # Errors
    /// It does not have it.
    pub fn required(&self, key: &str) -> Result<&'a str, UrlError> {
        self.text(key).ok_or_else(|| self.wrong(&format!("{key} is missing")))
    }

    /// Returns the path of a file, which is relative to that of the kubeconfig.
    pub fn path(&self, key: &str) -> Option<PathBuf> {
        self.text(key).map(|path| self.file.with_file_name(path))
    }

    /// Returns a certificate or key in it, or else one in a file.
    ///
    /// # Errors
    /// It is not in base64.
    pub fn pem(&self, key: &str) -> Result<Option<Pem>, UrlError> {
        let data = format!("{key}-data");
        let Some(text) = self.text(&data) else { return Ok(self.path(key).map(Pem::File)) };
        let pem = STANDARD.decode(text).map_err(|_| self.wrong(&format!("{data} is not base64")))?;
        Ok(Some(Pem::Text { pem, source: format!("{self}: {data}") }))
    }
}

impl fmt::Display for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.kind)
    }
}

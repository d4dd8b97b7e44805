//! A look at a folder of credentials, for `petrel doctor`.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use petrel::security::{FileAccess, SecurityError};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};

use crate::configs::{anchors, certified, provider};
use crate::files::{Files, Material};
use crate::identity::{Certificate, Fingerprint, time_text};
use crate::keys::Suite;
use crate::text;

/// What a look has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// A stable name, for scripts.
    pub name: &'static str,
    /// Whether connections can begin.
    pub verdict: Verdict,
    /// What is there, for people.
    pub found: String,
    /// What to do, unless all is well.
    pub advice: Option<String>,
}

/// The weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is well.
    Good,
    /// Connections begin, and end soon, or are refused by some peers.
    Doubtful,
    /// Connections cannot begin.
    Bad,
}

/// Looks at the files of `cert.pem`, `key.pem` and `ca.pem`, or of `key.pem` and `known_peers`: their modes, whether they belong together,
/// and whether peers accept them at the time `now`.
pub fn inspect(folder: impl AsRef<Path>, now: SystemTime) -> Vec<Finding> {
    let folder = folder.as_ref();
    let files = Files::in_folder(folder);
    let mut all = vec![modes(&files)];
    if all[0].verdict == Verdict::Bad {
        return all;
    }
    let read = files.read().and_then(|(material, _)| Ok((material, files.read_revoked()?)));
    let (material, revoked) = match read {
        Ok(read) => read,
        Err(error) => {
            let advice = "Make the folder by `petrel cert issue`, or `petrel key new` and `petrel key pin`, or mend the file.";
            all.push(finding("credentials-files", Err((Verdict::Bad, error.to_string(), advice))));
            return all;
        }
    };
    all.push(match &material {
        Material::RawKey { known, .. } if known.len() == 0 => {
            let advice = "Pin the keys of peers: `petrel key pin`.";
            let found = "a raw key, and no peer is pinned".to_owned();
            finding("credentials-files", Err((Verdict::Doubtful, found, advice)))
        }
        Material::RawKey { known, .. } => {
            finding("credentials-files", Ok(format!("a raw key, and {} pinned peers", known.len())))
        }
        Material::Certificates { authorities, .. } => {
            let found = format!("a certificate, its key, and {} authorities", authorities.len());
            finding("credentials-files", Ok(found))
        }
    });
    if let Material::Certificates { chain, key, authorities } = &material {
        let pair = certified(chain, key, &provider(&Suite::ALL));
        let pair = pair.map(|_| "the key is the certificate's".to_owned());
        let advice = "Issue both anew: `petrel cert issue`.";
        let pair = pair.map_err(|error| (Verdict::Bad, error.to_string(), advice));
        all.push(finding("credentials-key", pair));
        match Certificate::parse(&chain[0]) {
            Ok(own) => {
                all.push(finding("credentials-names", names(&own)));
                all.push(finding("credentials-validity", validity(&own, now)));
                all.push(finding("credentials-chain", chain_to(authorities, chain, &own, now)));
            }
            Err(error) => all
                .push(finding("credentials-names", Err((Verdict::Bad, error.to_string(), advice)))),
        }
        all.push(finding("credentials-revoked", not_revoked(chain, &revoked)));
    }
    all
}

/// A good finding, or the verdict, what is there, and the advice.
type Result<T = String> = std::result::Result<T, (Verdict, String, &'static str)>;

fn finding(name: &'static str, result: Result) -> Finding {
    match result {
        Ok(found) => Finding { name, verdict: Verdict::Good, found, advice: None },
        Err((verdict, found, advice)) => {
            Finding { name, verdict, found, advice: Some(advice.to_owned()) }
        }
    }
}

/// Only the owner reads the key.
fn modes(files: &Files) -> Finding {
    let (Files::Certificates { key, .. } | Files::RawKey { key, .. }) = files;
    let mode = fs::metadata(key).map_or(0, |metadata| metadata.mode() & 0o777);
    let found = format!("{} has mode {mode:o}", key.display());
    let result = match mode & FileAccess::Secret.forbidden() {
        0 => Ok(found),
        _ => Err((
            Verdict::Bad,
            found,
            "Let its owner alone have the key (`chmod 600`), and issue a new one if others may have read it.",
        )),
    };
    finding("credentials-modes", result)
}

fn names(own: &Certificate) -> Result {
    let names: Vec<&str> = own.identity.dns_names.iter().map(String::as_str).collect();
    let id = own.identity.spiffe_id.as_deref();
    let all = [names, own.addresses.iter().map(String::as_str).collect(), id.into_iter().collect()];
    match all.concat() {
        all if all.is_empty() => Err((
            Verdict::Doubtful,
            "the certificate has no name, no address and no SPIFFE ID".to_owned(),
            "A server needs the name or address by which clients dial: `petrel cert issue NAME`.",
        )),
        all => Ok(all.join(", ")),
    }
}

fn validity(own: &Certificate, now: SystemTime) -> Result {
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (begin, end) = (own.begins_at, own.expires_at);
    match now {
        _ if now < begin => Err((
            Verdict::Bad,
            format!("valid from {}, and the clock says {}", time_text(begin), time_text(now)),
            "Set the clock (NTP) of this host, or of the one that issued the certificate.",
        )),
        _ if now > end => Err((
            Verdict::Bad,
            format!("expired on {}; the clock says {}", time_text(end), time_text(now)),
            "Issue a new one (`petrel cert issue`), or set the clock if it is wrong.",
        )),
        _ if end - now < (end - begin) / 10 => Err((
            Verdict::Doubtful,
            format!("expires on {}: less than a tenth of its life is left", time_text(end)),
            "Issue a new one into the same folder; processes read it without a restart.",
        )),
        _ => Ok(format!("until {}", time_text(end))),
    }
}

/// Peers with the folder's authorities accept the certificate at either end.
fn chain_to(
    authorities: &[CertificateDer<'static>],
    chain: &[CertificateDer<'static>],
    own: &Certificate,
    now: SystemTime,
) -> Result {
    let advice = "Issue it by an authority of ca.pem, for both purposes, with the intermediate certificates in cert.pem.";
    let unusable = |error: SecurityError| (Verdict::Bad, error.to_string(), advice);
    // The validity has a finding of its own.
    let at = UNIX_EPOCH + Duration::from_secs(own.begins_at);
    let now = now.clamp(at, at + Duration::from_secs(own.expires_at.saturating_sub(own.begins_at)));
    let now = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
    let anchors = Arc::new(anchors(authorities).map_err(unusable)?);
    let provider = Arc::new(provider(&Suite::ALL));
    let algorithms = provider.signature_verification_algorithms.all;
    let as_acceptor = ParsedCertificate::try_from(&chain[0]).and_then(|own| {
        let behind = &chain[1..];
        verify_server_cert_signed_by_trust_anchor(&own, &anchors, behind, now, algorithms)
    });
    let openers = WebPkiClientVerifier::builder_with_provider(anchors, provider).build();
    let openers = openers.map_err(|error| unusable(SecurityError::new(error.to_string())))?;
    let as_opener = openers.verify_client_cert(&chain[0], &chain[1..], now).map(drop);
    let says = |error| text::of_connection(&error).to_string();
    match (as_acceptor, as_opener) {
        (Ok(()), Ok(())) => Ok("an authority of ca.pem has issued it, for both ends".to_owned()),
        (Err(error), Err(_)) => Err((Verdict::Bad, format!("peers say: {}", says(error)), advice)),
        (Err(error), Ok(())) => {
            Err((Verdict::Doubtful, format!("for clients alone: {}", says(error)), advice))
        }
        (Ok(()), Err(error)) => {
            Err((Verdict::Doubtful, format!("for servers alone: {}", says(error)), advice))
        }
    }
}

fn not_revoked(chain: &[CertificateDer<'static>], revoked: &HashSet<Fingerprint>) -> Result {
    match chain.iter().find(|one| revoked.contains(&Fingerprint::of(one))) {
        Some(own) => Err((
            Verdict::Doubtful,
            format!("{} of cert.pem stands in `revoked` itself", Fingerprint::of(own)),
            "Issue a new certificate: peers with the same list refuse this one.",
        )),
        None => Ok(format!("no; {} others are", revoked.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::issue::{self, Authority, Issued, Purpose, Subject};

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    /// Returns the findings of doubtful and bad folders: name, verdict and text.
    fn bad(folder: &Path, now: SystemTime) -> Vec<(&'static str, Verdict, String)> {
        let all = inspect(folder, now).into_iter();
        all.filter(|one| one.verdict != Verdict::Good)
            .map(|one| (one.name, one.verdict, one.found + " / " + &one.advice.unwrap()))
            .collect()
    }

    #[track_caller]
    fn only(folder: &Path, now: SystemTime, name: &str, verdict: Verdict, text: &str) {
        let bad = bad(folder, now);
        let [(found, weight, why)] = &bad[..] else { panic!("{bad:?}") };
        assert!(*found == name && *weight == verdict && why.contains(text), "{bad:?}");
    }

    #[test]
    fn inspect__of_good_and_bad_folders() {
        let folder = std::env::temp_dir().join(format!("petrel-inspect-{}", std::process::id()));
        let authority = Authority::new("test", 100 * DAY).unwrap();
        let subject = Subject::new(10 * DAY).name("a");
        let issued = authority.issue(&subject).unwrap();
        let write = |issued: &Issued| issued.write(&folder).unwrap();
        let now = SystemTime::now();
        write(&issued);
        assert_eq!(bad(&folder, now), []);
        assert_eq!(inspect(&folder, now).len(), 7);

        let (name, soon) = ("credentials-validity", now + 19 * DAY / 2);
        only(&folder, soon, name, Verdict::Doubtful, "less than a tenth of its life");
        only(&folder, now + 11 * DAY, name, Verdict::Bad, "expired on");
        only(&folder, now - DAY, name, Verdict::Bad, "valid from");

        issue::revoke(&folder, issued.fingerprint().unwrap()).unwrap();
        only(&folder, now, "credentials-revoked", Verdict::Doubtful, "stands in `revoked`");
        fs::remove_file(folder.join("revoked")).unwrap();

        let other = Authority::new("other", DAY).unwrap();
        write(&Issued {
            authority: other.certificate().to_owned(),
            ..authority.issue(&subject).unwrap()
        });
        only(&folder, now, "credentials-chain", Verdict::Bad, "no authority of ca.pem");
        let purpose = Purpose::Opener;
        write(&authority.issue(&Subject { purpose, ..subject.clone() }).unwrap());
        only(&folder, now, "credentials-chain", Verdict::Doubtful, "for clients alone");
        let below = authority.under("below", DAY).unwrap();
        write(&below.issue(&Subject::new(DAY / 2).spiffe("spiffe://a/b")).unwrap());
        assert_eq!(bad(&folder, now), []);

        write(&Issued {
            key: authority.issue(&subject).unwrap().key,
            ..authority.issue(&subject).unwrap()
        });
        only(&folder, now, "credentials-key", Verdict::Bad, "does not belong to the certificate");
        write(&issued);
        fs::remove_file(folder.join("ca.pem")).unwrap();
        only(&folder, now, "credentials-files", Verdict::Bad, "ca.pem cannot be read");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn inspect__of_raw_keys_and_of_modes() {
        let folder =
            std::env::temp_dir().join(format!("petrel-inspect-raw-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let now = SystemTime::now();
        let key = issue::new_raw_key(folder.join("key.pem")).unwrap();
        fs::write(folder.join("known_peers"), "").unwrap();
        only(&folder, now, "credentials-files", Verdict::Doubtful, "no peer is pinned");
        issue::pin(folder.join("known_peers"), "a", key).unwrap();
        assert_eq!(bad(&folder, now), []);
        fs::set_permissions(
            folder.join("key.pem"),
            std::os::unix::fs::PermissionsExt::from_mode(0o644),
        )
        .unwrap();
        only(&folder, now, "credentials-modes", Verdict::Bad, "has mode 644");
        fs::remove_dir_all(&folder).unwrap();
    }
}

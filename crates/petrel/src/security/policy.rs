//! A file with the rights of callers.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::files::{FileAccess, FilesStatus, FromFiles, read_file};
use super::{Authorize, Grant, PeerIdentity, SecurityError};

/// The refusal of callers without a text in the policy.
const REFUSED: &str = "the server's policy does not let this client call";

/// The rights of callers, by a file that is read again after changes. A line is for a kind of callers, and the first line that fits a caller
/// counts. A caller without a line may call nothing.
///
/// ```text
/// # who                    may call
/// spiffe://prod/web        1 2 10-19
/// spiffe://prod/admin/*    all
/// dns:*.example.com        3 stats
/// key:sha256:BASE64        all
/// uid:1000                 all            # over shared memory
/// *                        nothing        "this service is for the shop"
/// ```
///
/// | who | fits |
/// | --- | --- |
/// | `spiffe://…` | callers with the SPIFFE ID; with `/*` at the end, all IDs below |
/// | `dns:NAME` | callers with the name in their certificate; with `*.` at the begin, names with a label there |
/// | `key:sha256:BASE64` | the certificate or raw key with the fingerprint, as printed by `petrel cert show` |
/// | `uid:NUMBER` | processes of a user of this host, over shared memory |
/// | `*` | all callers |
///
/// A caller may call methods by number, as ranges, or by names of the program; `stats` are the counters of the process
/// (`petrel stats`). `all` is everything, and `nothing` may have a text for the caller. [Regions](crate::region) are served by methods
/// 65520 to 65527.
///
/// ```
/// use std::sync::Arc;
///
/// use petrel::Server;
/// use petrel::security::Policy;
///
/// # let file = std::env::temp_dir().join(format!("petrel-policy-{}", std::process::id()));
/// # std::fs::write(&file, "* ping").unwrap();
/// let policy = Policy::from_file(&file, [("ping", 1)])?;
/// let server = Server::bind("127.0.0.1:0").authorize(Arc::new(policy));
/// # std::fs::remove_file(file).unwrap();
/// # Ok::<(), petrel::security::SecurityError>(())
/// ```
#[derive(Debug)]
pub struct Policy {
    file: PathBuf,
    names: Vec<(String, u16)>,
    rules: FromFiles<Rules>,
}

#[derive(Debug)]
struct Rules {
    text: Vec<u8>,
    rules: Vec<(Who, Grant)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Who {
    Spiffe(String),
    /// All SPIFFE IDs with a beginning.
    SpiffeBelow(String),
    Dns(String),
    /// All names of a label before a text, beginning with a dot.
    DnsBelow(String),
    Key([u8; 32]),
    User(u32),
    Anyone,
}

impl Policy {
    /// Reads a policy with names of methods. Later changes of the file are read within two seconds; a broken file
    /// leaves the former policy in use, and [`status`](Self::status) has the reason.
    ///
    /// # Errors
    /// The file cannot be read, or every user may write to the file; or a line is wrong, with number and remedy.
    pub fn from_file(
        file: impl Into<PathBuf>,
        names: impl IntoIterator<Item = (impl Into<String>, u16)>,
    ) -> Result<Self, SecurityError> {
        let file = file.into();
        let names: Vec<_> = names.into_iter().map(|(name, number)| (name.into(), number)).collect();
        let rules = FromFiles::new(vec![file.clone()], || {
            Rules::parse(&file, read_file(&file, FileAccess::Trusted)?, &names)
        })?;
        Ok(Self { file, names, rules })
    }

    /// Returns the state of the policy.
    pub fn status(&self) -> FilesStatus {
        self.rules.status()
    }

    /// Reads the file now.
    ///
    /// # Errors
    /// The file is broken; the former policy stays in use.
    pub fn reload(&self) -> Result<(), SecurityError> {
        self.rules.reload(|former| self.read(former))
    }

    fn read(&self, former: &Rules) -> Result<Option<Rules>, SecurityError> {
        let text = read_file(&self.file, FileAccess::Trusted)?;
        let is_new = text != former.text;
        is_new.then(|| Rules::parse(&self.file, text, &self.names)).transpose()
    }
}

impl Authorize for Policy {
    fn grant(&self, caller: &PeerIdentity) -> Grant {
        let rules = self.rules.get(Instant::now(), |former| self.read(former));
        let rule = rules.rules.iter().find(|(who, _)| who.fits(caller));
        rule.map_or_else(|| Grant::refuse(REFUSED), |(_, grant)| grant.clone())
    }

    fn look(&self) -> (u64, Option<SecurityError>) {
        self.rules.get(Instant::now(), |former| self.read(former));
        let FilesStatus { loads, failure } = self.status();
        (loads, failure)
    }
}

impl Rules {
    fn parse(file: &Path, text: Vec<u8>, names: &[(String, u16)]) -> Result<Self, SecurityError> {
        let shown = file.display();
        let lines = std::str::from_utf8(&text);
        let lines =
            lines.map_err(|_| SecurityError::new(format!("{shown} is no text in UTF-8")))?;
        let mut rules: Vec<(Who, Grant)> = Vec::new();
        for (line, number) in lines.lines().map(str::trim).zip(1..) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at = |why| SecurityError::new(format!("{shown}, line {number}: {why}"));
            if matches!(rules.last(), Some((Who::Anyone, _))) {
                return Err(at(
                    "a line for all callers stands before: make that one the last".into()
                ));
            }
            rules.push(rule(line, names).map_err(at)?);
        }
        Ok(Self { text, rules })
    }
}

/// Reads a line that is neither empty nor a comment.
fn rule(line: &str, names: &[(String, u16)]) -> Result<(Who, Grant), String> {
    let (line, refusal) = match line.split_once('"') {
        Some((before, quoted)) if !before.contains('#') => {
            let (text, rest) =
                quoted.split_once('"').ok_or("the text has no end: add a quotation mark")?;
            if !matches!(rest.trim_start().chars().next(), None | Some('#')) {
                return Err("more stands behind the text: put the text at the end".to_owned());
            }
            (before, Some(text))
        }
        _ => (line, None),
    };
    let mut words = line.split_whitespace().take_while(|word| !word.starts_with('#'));
    let who =
        Who::parse(words.next().ok_or("the line begins with a text: say first who it is for")?)?;
    let words: Vec<_> = words.collect();
    let grant = match (words.as_slice(), refusal) {
        (["nothing"], text) => Grant::refuse(text.unwrap_or(REFUSED)),
        (_, Some(_)) => return Err("only `nothing` has a text: take the text out".to_owned()),
        (["all"], None) => Grant::all(),
        ([], None) => {
            let text = "it does not say what the callers may call: add `all`, `nothing`, `stats` or numbers of methods";
            return Err(text.to_owned());
        }
        (words, None) => {
            let numbers = words.iter().filter(|word| **word != "stats");
            let methods =
                numbers.map(|word| methods(word, names)).collect::<Result<Vec<_>, _>>()?;
            let grant = Grant::ranges(methods);
            if words.contains(&"stats") { grant.and_stats() } else { grant }
        }
    };
    Ok((who, grant))
}

/// Reads the number of a method, a range of numbers, or a name.
fn methods(word: &str, names: &[(String, u16)]) -> Result<RangeInclusive<u16>, String> {
    if let Some((_, number)) = names.iter().find(|(name, _)| *name == word) {
        return Ok(*number..=*number);
    }
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        (Ok(_), Ok(_)) => Err(format!("the range `{word}` is empty: write the lower number first")),
        _ if ["all", "nothing"].contains(&word) => {
            Err(format!("`{word}` stands beside methods: write one or the other"))
        }
        _ => {
            let known = names.iter().map(|(name, _)| format!(", `{name}`")).collect::<String>();
            Err(format!(
                "`{word}` is no method: write a number, a range as `10-19`{known} or `stats`"
            ))
        }
    }
}

impl Who {
    fn parse(word: &str) -> Result<Self, String> {
        let unknown = || {
            format!(
                "`{word}` names no caller: write `spiffe://DOMAIN/PATH`, `dns:NAME`, `key:sha256:BASE64`, `uid:NUMBER` or `*`"
            )
        };
        let starless = |text: &str| match text.contains('*') {
            true => Err(format!(
                "`{word}` has a `*` in another place: it stands at the end of a SPIFFE ID behind `/`, or at the begin of a name before `.`"
            )),
            false => Ok(text.to_owned()),
        };
        if word == "*" {
            return Ok(Self::Anyone);
        }
        if let Some(path) = word.strip_prefix("spiffe://").filter(|path| !path.is_empty()) {
            let below = path.strip_suffix("/*").is_some();
            let id = starless(if below { &word[..word.len() - 1] } else { word })?;
            return Ok(if below { Self::SpiffeBelow(id) } else { Self::Spiffe(id) });
        }
        match word.split_once(':') {
            Some(("dns", name)) if name.starts_with("*.") => {
                Ok(Self::DnsBelow(starless(&name[1..])?))
            }
            Some(("dns", name)) if !name.is_empty() => Ok(Self::Dns(starless(name)?)),
            Some(("key", key)) => {
                let digits = key.get(..7).filter(|kind| kind.eq_ignore_ascii_case("sha256:"));
                let key = digits.and_then(|_| fingerprint(&key[7..])).ok_or_else(|| {
                    format!("`{word}` has no fingerprint: copy the one that `petrel cert show` or `petrel key new` prints")
                })?;
                Ok(Self::Key(key))
            }
            Some(("uid", number)) => number.parse().map(Self::User).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }

    fn fits(&self, caller: &PeerIdentity) -> bool {
        let (id, names) = (caller.spiffe_id.as_deref(), &caller.dns_names);
        match self {
            Self::Spiffe(wanted) => id == Some(wanted),
            Self::SpiffeBelow(begin) => {
                id.is_some_and(|id| id.len() > begin.len() && id.starts_with(begin))
            }
            Self::Dns(wanted) => names.iter().any(|name| name.eq_ignore_ascii_case(wanted)),
            Self::DnsBelow(end) => names.iter().any(|name| {
                let label = name.find('.').filter(|length| *length > 0);
                label.is_some_and(|length| name[length..].eq_ignore_ascii_case(end))
            }),
            Self::Key(key) => caller.fingerprint == Some(*key),
            Self::User(user) => caller.uid == Some(*user),
            Self::Anyone => true,
        }
    }
}

/// Reads 32 bytes in base 64.
fn fingerprint(text: &str) -> Option<[u8; 32]> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text = text.strip_suffix('=').unwrap_or(text);
    let (mut bytes, mut bits) = (Vec::with_capacity(32), 0);
    for (digit, count) in text.bytes().zip(1..) {
        let value = DIGITS.iter().position(|known| *known == digit)?;
        bits = (bits << 6 | value) & 0x3fff;
        if count % 4 != 1 {
            bytes.push((bits >> (6 - 2 * ((count - 1) % 4))) as u8);
        }
    }
    // The 43rd digit has four bits of the last byte, and two that must be zero.
    bytes.try_into().ok().filter(|_| text.len() == 43 && bits & 3 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Rules, String> {
        let rules = Rules::parse(Path::new("policy"), text.into(), &[("get".to_owned(), 7)]);
        rules.map_err(|error| error.to_string())
    }

    fn caller(change: impl FnOnce(&mut PeerIdentity)) -> PeerIdentity {
        let mut caller = PeerIdentity::default();
        change(&mut caller);
        caller
    }

    fn granted(rules: &str, caller: &PeerIdentity) -> Option<Grant> {
        let rules = parse(rules).unwrap().rules;
        rules.into_iter().find(|(who, _)| who.fits(caller)).map(|(_, grant)| grant)
    }

    #[test]
    fn grant__is_that_of_the_first_line_that_fits() {
        let key = format!("key:SHA256:{}", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8");
        let text = format!(
            "# who may call\n\nspiffe://prod/web 1 10-19 get # a comment with \"text\"\n spiffe://prod/jobs/* stats\n\
             dns:admin.example.com all\ndns:*.example.com 2\n{key}= 3\nuid:1000 4\n* nothing \"for the # shop\" # all"
        );
        let spiffe = |id: &str| caller(|caller| caller.spiffe_id = Some(id.to_owned()));
        let dns = |name: &str| caller(|caller| caller.dns_names = vec![name.to_owned()]);
        let shop = Grant::refuse("for the # shop");
        for (caller, grant) in [
            (spiffe("spiffe://prod/web"), Grant::ranges([1..=1, 10..=19, 7..=7])),
            (spiffe("spiffe://prod/web/1"), shop.clone()),
            (spiffe("spiffe://prod/jobs/a/b"), Grant::methods([]).and_stats()),
            (spiffe("spiffe://prod/jobs/"), shop.clone()),
            (spiffe("spiffe://prod/jobs"), shop.clone()),
            (dns("ADMIN.example.com"), Grant::all()),
            (dns("db.example.com"), Grant::methods([2])),
            (dns("a.db.example.com"), shop.clone()),
            (dns(".example.com"), shop.clone()),
            (dns("example.com"), shop.clone()),
            (
                caller(|it| it.fingerprint = Some(std::array::from_fn(|at| at as u8))),
                Grant::methods([3]),
            ),
            (caller(|it| it.fingerprint = Some([0; 32])), shop.clone()),
            (caller(|it| it.uid = Some(1_000)), Grant::methods([4])),
            (caller(|it| it.uid = Some(0)), shop.clone()),
            (PeerIdentity::default(), shop),
        ] {
            assert_eq!(granted(&text, &caller), Some(grant), "{caller:?}");
        }
        assert_eq!(granted("uid:1 all", &PeerIdentity::default()), None);
    }

    #[test]
    fn parse__of_a_wrong_line_says_which_and_why() {
        let short = format!("key:sha256:{} all", "A".repeat(42));
        let long = format!("key:sha256:{} all", "A".repeat(44));
        let rest = format!("key:sha256:{}B all", "A".repeat(42));
        for (line, why) in [
            ("web all", "`web` names no caller: write `spiffe://"),
            ("spiffe:// all", "names no caller"),
            ("uid:-1 all", "names no caller"),
            ("dns: all", "names no caller"),
            ("spiffe://*/web all", "`*` in another place"),
            ("dns:a.*.com all", "`*` in another place"),
            ("dns:*.*.com all", "`*` in another place"),
            (&short, "has no fingerprint"),
            (&long, "has no fingerprint"),
            (&rest, "has no fingerprint"),
            ("key:md5:AAAA all", "has no fingerprint"),
            ("* ", "does not say what"),
            ("* 1 all", "`all` stands beside methods"),
            ("* 9-8", "write the lower number first"),
            (
                "* 65536",
                "`65536` is no method: write a number, a range as `10-19`, `get` or `stats`",
            ),
            ("* put", "`put` is no method"),
            ("* all \"text\"", "only `nothing` has a text"),
            ("* nothing \"text", "the text has no end"),
            ("* nothing \"text\" 1", "more stands behind the text"),
            ("\"text\"", "say first who"),
            ("* all\nuid:1 all", "line 4: a line for all callers stands before"),
        ] {
            let error = parse(&format!("# a comment\n\n{line}\n")).unwrap_err();
            assert!(error.starts_with("policy, line ") && error.contains(why), "{line}: {error}");
        }
        assert!(Rules::parse(Path::new("policy"), vec![0xff], &[]).is_err());
    }
}

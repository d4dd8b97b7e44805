/// Chooses the mutant of this process, and records the executed places. The probe adds this module to
/// `petrel-planted` in its copy of the workspace.
#[allow(missing_docs)]
pub mod mutant {
    use std::fs::File;
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    /// The mutant of this process, or one of the constants below.
    static CHOSEN: AtomicU32 = AtomicU32::new(UNSET);
    const NONE: u32 = u32::MAX;
    const UNSET: u32 = u32::MAX - 1;
    const REACH: u32 = u32::MAX - 2;

    /// Most mutants of a workspace.
    const IDS_MAX: usize = 1 << 16;

    static REACHED: [AtomicBool; IDS_MAX] = [const { AtomicBool::new(false) }; IDS_MAX];
    static FILE: OnceLock<File> = OnceLock::new();

    /// Returns true if this mutant is active.
    #[inline]
    pub fn is(id: u32) -> bool {
        let chosen = CHOSEN.load(Ordering::Relaxed);
        if chosen == UNSET || chosen == REACH { is_slow(id) } else { chosen == id }
    }

    #[cold]
    fn is_slow(id: u32) -> bool {
        if CHOSEN.load(Ordering::Relaxed) == UNSET {
            CHOSEN.store(choose(), Ordering::Relaxed);
            return is(id);
        }
        let reached = &REACHED[id as usize];
        if !reached.load(Ordering::Relaxed)
            && !reached.swap(true, Ordering::Relaxed)
            && let Some(mut file) = FILE.get()
        {
            // A single write at the end of the file, because further processes of the test append, too.
            file.write_all(&id.to_le_bytes()).expect("the file of what is reached takes more");
        }
        false
    }

    fn choose() -> u32 {
        if let Some(path) = std::env::var_os("PETREL_REACH") {
            let file = File::options().create(true).append(true).open(path);
            FILE.get_or_init(|| file.expect("the file of what is reached can be opened"));
            return REACH;
        }
        let chosen = std::env::var("PETREL_MUTANT").ok();
        chosen.map_or(NONE, |id| id.parse().expect("PETREL_MUTANT is a number"))
    }
}

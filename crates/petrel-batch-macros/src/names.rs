//! A distinct name for every local.
//!
//! Shadowed locals have the same name in the user's text. While the macro works, each binding has a unique name; the emitted
//! code has the user's names and places again, so that errors and lints speak of the user's program.

use std::collections::{BTreeSet, HashMap};

use proc_macro2::{Group, TokenStream, TokenTree};
use quote::{format_ident, quote};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Arm, Block, Error, Expr, FieldPat, FieldValue, Ident, Macro, Member, Pat, PatIdent, Result,
    Stmt, Type,
};

use crate::marks;

/// Stands before a macro's arguments, with the locals that their literals name.
const USES: &str = "__petrel_uses";

/// Calls a function for each word of a program's text.
pub(crate) fn words(tokens: TokenStream, each: &mut dyn FnMut(Ident)) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => words(group.stream(), each),
            TokenTree::Ident(name) => each(name),
            _ => {}
        }
    }
}

/// A local of the function, by its unique name.
pub(crate) struct Binding {
    pub(crate) ident: Ident,
    pub(crate) ty: Option<Type>,
    /// The initialiser behind a plain name: a lane can keep only some values.
    pub(crate) init: Option<Expr>,
    /// Whether a string names the local, which therefore cannot have another name.
    is_in_string: bool,
    /// Whether the emitted code has the unique name, since another local hides this one where a lane keeps it.
    stays_unique: bool,
}

/// All locals of a function.
#[derive(Default)]
pub(crate) struct Names {
    bindings: HashMap<String, Binding>,
    scopes: Vec<HashMap<String, Ident>>,
    /// The locals that the user's names mean at each mark.
    visible: HashMap<usize, BTreeSet<String>>,
}

impl Names {
    /// Gives each local of a body a unique name.
    pub(crate) fn of(block: &mut Block) -> Self {
        let mut names = Self::default();
        names.visit_block_mut(block);
        names
    }

    pub(crate) fn binding(&self, unique: &str) -> Option<&Binding> {
        self.bindings.get(unique)
    }

    pub(crate) fn is_local(&self, unique: &Ident) -> bool {
        self.bindings.contains_key(&unique.to_string())
    }

    /// Lets locals keep their unique names if another local has their name at a mark at which they are live.
    ///
    /// # Errors
    /// If a string names such a local.
    pub(crate) fn keep_shadowed(&mut self, live: &[BTreeSet<String>]) -> Result<()> {
        for (mark, visible) in &self.visible {
            for hidden in live[*mark].difference(visible) {
                let Some(binding) = self.bindings.get_mut(hidden) else { continue };
                binding.stays_unique = true;
                if binding.is_in_string {
                    let message = format!(
                        "another local `{0}` hides this one at a mark, and a string names it: rename one of them, or write `{{}}` and the argument `{0}`",
                        binding.ident
                    );
                    return Err(Error::new(binding.ident.span(), message));
                }
            }
        }
        Ok(())
    }

    fn see_mark(&mut self, number: usize) {
        let mut visible = HashMap::new();
        for scope in &self.scopes {
            visible.extend(scope);
        }
        let visible = visible.into_values().map(Ident::to_string).collect();
        self.visible.insert(number, visible);
    }

    fn find(&self, name: &str) -> Option<Ident> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name).cloned())
    }

    fn in_scope(&mut self, visit: impl FnOnce(&mut Self)) {
        self.scopes.push(HashMap::new());
        visit(self);
        self.scopes.pop();
    }

    /// Binds the names of a pattern. Alternatives of a pattern bind equal locals.
    fn bind(&mut self, pattern: &mut Pat, ty: Option<&Type>, init: Option<&Expr>) {
        let mut bind = Bind { names: self, ty, init, bound: HashMap::new() };
        bind.visit_pat_mut(pattern);
        let bound = bind.bound;
        if let Some(scope) = self.scopes.last_mut() {
            scope.extend(bound);
        }
    }

    fn renamed(&self, tokens: TokenStream, uses: &mut Vec<Ident>) -> TokenStream {
        let mut dots = 0;
        let mut rename = |token| {
            // The name behind a single dot is a field or a method.
            let is_member = std::mem::take(&mut dots) == 1;
            match token {
                TokenTree::Group(group) => {
                    let mut renamed =
                        Group::new(group.delimiter(), self.renamed(group.stream(), uses));
                    renamed.set_span(group.span());
                    TokenTree::Group(renamed)
                }
                TokenTree::Ident(name) if !is_member => {
                    TokenTree::Ident(match self.find(&name.to_string()) {
                        Some(unique) => at(&unique, &name),
                        None => name,
                    })
                }
                TokenTree::Literal(literal) => {
                    let text = literal.to_string();
                    if text.contains('{') {
                        let words =
                            text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
                        uses.extend(words.filter_map(|word| self.find(word)));
                    }
                    TokenTree::Literal(literal)
                }
                TokenTree::Punct(sign) if sign.as_char() == '.' => {
                    dots = if is_member { 2 } else { 1 };
                    TokenTree::Punct(sign)
                }
                token => token,
            }
        };
        tokens.into_iter().map(&mut rename).collect()
    }
}

/// Returns a name at the place of another.
fn at(name: &Ident, place: &Ident) -> Ident {
    let mut name = name.clone();
    name.set_span(place.span());
    name
}

/// Returns whether a pattern's name is a local: constants and variants begin with a capital letter.
fn is_binding(pattern: &PatIdent) -> bool {
    let is_marked =
        pattern.by_ref.is_some() || pattern.mutability.is_some() || pattern.subpat.is_some();
    is_marked || !pattern.ident.to_string().starts_with(char::is_uppercase)
}

struct Bind<'a> {
    names: &'a mut Names,
    ty: Option<&'a Type>,
    init: Option<&'a Expr>,
    bound: HashMap<String, Ident>,
}

impl VisitMut for Bind<'_> {
    fn visit_pat_ident_mut(&mut self, pattern: &mut PatIdent) {
        visit_mut::visit_pat_ident_mut(self, pattern);
        if !is_binding(pattern) {
            return;
        }
        let name = pattern.ident.to_string();
        let (names, ty, init) = (&mut *self.names, self.ty, self.init);
        let unique = self.bound.entry(name).or_insert_with_key(|name| {
            let number = names.bindings.len();
            let unique = format_ident!("__petrel_{}_{}", number, name.trim_start_matches("r#"));
            let ident = pattern.ident.clone();
            let binding = Binding {
                ident,
                ty: ty.cloned(),
                init: init.cloned(),
                is_in_string: false,
                stays_unique: false,
            };
            names.bindings.insert(unique.to_string(), binding);
            unique
        });
        pattern.ident = at(unique, &pattern.ident);
    }

    fn visit_field_pat_mut(&mut self, field: &mut FieldPat) {
        if field.colon_token.is_none() {
            field.colon_token = Some(Default::default());
        }
        visit_mut::visit_field_pat_mut(self, field);
    }

    fn visit_pat_mut(&mut self, pattern: &mut Pat) {
        match pattern {
            Pat::Guard(guard) => self.visit_pat_mut(&mut guard.pat),
            // Paths, literals and ranges name constants.
            Pat::Path(_) | Pat::Lit(_) | Pat::Range(_) | Pat::Const(_) | Pat::Macro(_) => {}
            pattern => visit_mut::visit_pat_mut(self, pattern),
        }
    }
    fn visit_type_mut(&mut self, _: &mut Type) {}
}

impl VisitMut for Names {
    fn visit_block_mut(&mut self, block: &mut Block) {
        self.in_scope(|names| block.stmts.iter_mut().for_each(|stmt| names.visit_stmt_mut(stmt)));
    }

    fn visit_stmt_mut(&mut self, statement: &mut Stmt) {
        let Stmt::Local(local) = statement else {
            return visit_mut::visit_stmt_mut(self, statement);
        };
        if let Some(init) = &mut local.init {
            self.visit_expr_mut(&mut init.expr);
            if let Some((_, otherwise)) = &mut init.diverge {
                self.visit_expr_mut(otherwise);
            }
        }
        let init = local.init.as_ref().map(|init| &*init.expr);
        match &mut local.pat {
            Pat::Type(typed) if matches!(&*typed.pat, Pat::Ident(_)) => {
                self.bind(&mut typed.pat, Some(&typed.ty), init);
            }
            pattern @ Pat::Ident(_) => self.bind(pattern, None, init),
            Pat::Type(typed) => self.bind(&mut typed.pat, None, None),
            pattern => self.bind(pattern, None, None),
        }
    }

    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        self.in_scope(|names| {
            names.bind(&mut arm.pat, None, None);
            if let Pat::Guard(guard) = &mut arm.pat {
                names.visit_expr_mut(&mut guard.guard);
            }
            names.visit_expr_mut(&mut arm.body);
        });
    }

    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        if let Some(mark) = marks::mark(expression) {
            self.see_mark(mark.number);
        }
        match expression {
            Expr::If(choice) => {
                self.in_scope(|names| {
                    names.visit_expr_mut(&mut choice.cond);
                    names.visit_block_mut(&mut choice.then_branch);
                });
                if let Some((_, otherwise)) = &mut choice.else_branch {
                    self.visit_expr_mut(otherwise);
                }
            }
            Expr::While(repeat) => self.in_scope(|names| {
                names.visit_expr_mut(&mut repeat.cond);
                names.visit_block_mut(&mut repeat.body);
            }),
            Expr::ForLoop(walk) => {
                self.visit_expr_mut(&mut walk.expr);
                self.in_scope(|names| {
                    names.bind(&mut walk.pat, None, None);
                    names.visit_block_mut(&mut walk.body);
                });
            }
            Expr::Let(condition) => {
                self.visit_expr_mut(&mut condition.expr);
                self.bind(&mut condition.pat, None, None);
            }
            Expr::Closure(closure) => self.in_scope(|names| {
                closure.inputs.iter_mut().for_each(|input| names.bind(input, None, None));
                names.visit_expr_mut(&mut closure.body);
            }),
            Expr::Path(path) if path.qself.is_none() => {
                if let Some(name) = path.path.get_ident()
                    && let Some(unique) = self.find(&name.to_string())
                {
                    path.path = at(&unique, name).into();
                }
            }
            expression => visit_mut::visit_expr_mut(self, expression),
        }
    }

    fn visit_field_value_mut(&mut self, field: &mut FieldValue) {
        if field.colon_token.is_none() && matches!(field.member, Member::Named(_)) {
            field.colon_token = Some(Default::default());
        }
        self.visit_expr_mut(&mut field.expr);
    }

    fn visit_macro_mut(&mut self, mac: &mut Macro) {
        let mut uses = Vec::new();
        let tokens = self.renamed(mac.tokens.clone(), &mut uses);
        for unique in &uses {
            if let Some(binding) = self.bindings.get_mut(&unique.to_string()) {
                binding.is_in_string = true;
            }
        }
        let name = format_ident!("{USES}");
        mac.tokens = match uses.is_empty() {
            true => tokens,
            false => quote!(#name (#(#uses)*) #tokens),
        };
    }
    fn visit_type_mut(&mut self, _: &mut Type) {}
    fn visit_item_mut(&mut self, _: &mut syn::Item) {}
}

/// Gives the locals the user's names again.
pub(crate) struct Restore<'a>(pub(crate) &'a Names);

impl Restore<'_> {
    fn restored(&self, tokens: TokenStream) -> TokenStream {
        let mut tokens = tokens.into_iter().peekable();
        if matches!(tokens.peek(), Some(TokenTree::Ident(name)) if *name == USES) {
            tokens.next();
            tokens.next();
        }
        let restore = |token| match token {
            TokenTree::Group(group) => {
                let mut restored = Group::new(group.delimiter(), self.restored(group.stream()));
                restored.set_span(group.span());
                TokenTree::Group(restored)
            }
            TokenTree::Ident(mut name) => {
                self.visit_ident(&mut name);
                TokenTree::Ident(name)
            }
            token => token,
        };
        tokens.map(restore).collect()
    }

    fn visit_ident(&self, name: &mut Ident) {
        if let Some(binding) = self.0.binding(&name.to_string())
            && !binding.stays_unique
        {
            *name = at(&binding.ident, name);
        }
    }
}

impl VisitMut for Restore<'_> {
    fn visit_ident_mut(&mut self, name: &mut Ident) {
        self.visit_ident(name);
    }
    fn visit_macro_mut(&mut self, mac: &mut Macro) {
        mac.tokens = self.restored(mac.tokens.clone());
    }
}

/// Returns the unique names that a pattern binds.
pub(crate) fn bound(pattern: &Pat) -> Vec<Ident> {
    struct Bound(Vec<Ident>);
    impl<'ast> syn::visit::Visit<'ast> for Bound {
        fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
            if is_binding(pattern) && !self.0.contains(&pattern.ident) {
                self.0.push(pattern.ident.clone());
            }
            syn::visit::visit_pat_ident(self, pattern);
        }
    }
    let mut bound = Bound(Vec::new());
    syn::visit::Visit::visit_pat(&mut bound, pattern);
    bound.0
}

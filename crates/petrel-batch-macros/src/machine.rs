//! A body as states: the code from the beginning and from each mark to the next marks, with the locals that lanes keep.

use proc_macro2::{Span, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Arm, Block, Error, Expr, ExprClosure, Ident, Local, Pat, PatIdent, Path, Result, Stmt,
    parse_quote,
};

use crate::copies::{kept_name, resume_block};
use crate::cut::cut_block;
use crate::emit::suspend;
use crate::live::{Set, live};
use crate::marks;
use crate::names::{Names, Restore, bound};
use crate::normal::{Loops, Ties};
use crate::temporaries::{Temporaries, checked, lets};
use crate::uses::is_used;

/// One state.
pub(crate) struct State {
    /// The names by which the code reads the kept values, in the order of the values.
    pub(crate) kept: Vec<Ident>,
    /// The code, in which a mark is a call of the macro's own.
    pub(crate) code: Block,
}

/// The states of a function. The first is its beginning; the state `k` begins behind the mark `k`.
pub(crate) struct Machine {
    pub(crate) states: Vec<State>,
    /// Whether lanes can come to a mark again.
    pub(crate) has_loops: bool,
    pub(crate) ties: usize,
    /// The items in the function's body.
    pub(crate) items: Vec<Stmt>,
}

/// Builds the states of a body whose marks are internal calls and whose `return` are jumps.
///
/// # Errors
/// If a mark stands in an operand, or a local cannot be kept.
pub(crate) fn build(mut block: Block, function: &Ident, krate: &Path) -> Result<Machine> {
    let count = marks::number(&mut block, function)?;
    Temporaries { krate }.visit_block_mut(&mut block);
    Loops::default().visit_block_mut(&mut block);
    let mut ties = Ties { krate, count: 0 };
    ties.visit_block_mut(&mut block);
    let (items, stmts) =
        block.stmts.into_iter().partition(|statement| matches!(statement, Stmt::Item(_)));
    block.stmts = stmts;
    let has_loops = marks::any_in_loop(&block);
    let mut names = Names::of(&mut block);
    DropChecks { krate }.visit_block_mut(&mut block);

    let mut codes = vec![cut_block(&block).0];
    for number in 1..=count {
        codes.push(resume_block(&block, number)?.0);
    }
    let live = live(&names, &codes);
    names.keep_shadowed(&live)?;
    check_kept(&names, &codes, &live)?;
    let states = codes.into_iter().enumerate().map(|(number, mut code)| {
        let kept = live[number].iter().map(|name| kept_ident(name)).collect();
        Kept { names: &names, live: &live[number] }.visit_block_mut(&mut code);
        End { live: &live, names: &names, krate, has_loops }.visit_block_mut(&mut code);
        Restore(&names).visit_block_mut(&mut code);
        State { kept, code }
    });
    Ok(Machine { states: states.collect(), has_loops, ties: ties.count, items })
}

/// The name under which a state gets a kept value.
fn kept_ident(unique: &str) -> Ident {
    format_ident!("__petrel_kept{}", unique.trim_start_matches("__petrel"))
}

/// Refuses locals that need drop where a mark stands in their scope.
///
/// The plain function would drop such a local at the end of its scope, a batch at the mark. A guard would then end too early.
struct DropChecks<'a> {
    krate: &'a Path,
}

impl DropChecks<'_> {
    /// Checks the values of assignments to the locals of a `let` without a value.
    fn check_assigned(&self, pattern: &Pat, rest: &mut [Stmt]) {
        let names = bound(pattern);
        let is_mut = pattern.to_token_stream().into_iter().any(|token| token.to_string() == "mut");
        Assigned { krate: self.krate, names, is_mut, has_mark_behind: false }.visit_stmts(rest);
    }

    fn checks(&self, pattern: &Pat) -> Vec<Stmt> {
        let krate = self.krate;
        let check = |name: Ident| {
            let call = quote_spanned!(name.span()=> #krate::__private::no_drop(&#name));
            parse_quote!(#call;)
        };
        bound(pattern).into_iter().map(check).collect()
    }
}

impl VisitMut for DropChecks<'_> {
    fn visit_block_mut(&mut self, block: &mut Block) {
        visit_mut::visit_block_mut(self, block);
        for place in 0..block.stmts.len() {
            let (before, rest) = block.stmts.split_at_mut(place + 1);
            if let Stmt::Local(Local { pat, init: None, .. }) = &before[place] {
                self.check_assigned(pat, rest);
            }
        }
        let mut has_mark = false;
        let mut stmts = Vec::with_capacity(block.stmts.len());
        for statement in block.stmts.drain(..).rev() {
            if let Stmt::Local(local) = &statement
                && has_mark
                && local.init.is_some()
            {
                stmts.extend(self.checks(&local.pat));
            }
            has_mark |= marks::in_stmt(&statement, None);
            stmts.push(statement);
        }
        stmts.reverse();
        block.stmts = stmts;
    }

    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        visit_mut::visit_arm_mut(self, arm);
        if marks::in_expr(&arm.body, None) {
            let (checks, body) = (self.checks(&arm.pat), &arm.body);
            arm.body = parse_quote!({ #(#checks)* #body });
        }
    }

    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        visit_mut::visit_expr_mut(self, expression);
        let (condition, block) = match expression {
            Expr::If(choice) => (&mut choice.cond, &mut choice.then_branch),
            Expr::While(repeat) => (&mut repeat.cond, &mut repeat.body),
            _ => return,
        };
        if marks::in_block(block, None) {
            let checks = lets(condition).into_iter().flat_map(|it| self.checks(&it.pat));
            block.stmts.splice(0..0, checks.collect::<Vec<_>>());
        }
    }
    fn visit_expr_closure_mut(&mut self, _: &mut ExprClosure) {}
}

/// Checks the values of assignments before a mark.
struct Assigned<'a> {
    krate: &'a Path,
    names: Vec<Ident>,
    is_mut: bool,
    /// Whether a mark follows, in the text or in a loop's next turn.
    has_mark_behind: bool,
}

impl Assigned<'_> {
    fn visit_stmts(&mut self, stmts: &mut [Stmt]) {
        let around = self.has_mark_behind;
        for statement in stmts.iter_mut().rev() {
            self.visit_stmt_mut(statement);
            self.has_mark_behind |= marks::in_stmt(statement, None);
        }
        self.has_mark_behind = around;
    }
}

impl VisitMut for Assigned<'_> {
    fn visit_block_mut(&mut self, block: &mut Block) {
        self.visit_stmts(&mut block.stmts);
    }

    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        let around = self.has_mark_behind;
        // A loop assigns a local without `mut` in its last turn alone.
        let is_loop = matches!(expression, Expr::Loop(_) | Expr::While(_) | Expr::ForLoop(_));
        self.has_mark_behind |= is_loop && self.is_mut && marks::in_expr(expression, None);
        visit_mut::visit_expr_mut(self, expression);
        if let Expr::Assign(assign) = expression
            && self.has_mark_behind
        {
            let is_own = |word: &Ident| self.names.contains(word);
            let mut left = assign.left.to_token_stream().into_iter();
            if left.any(|token| matches!(&token, TokenTree::Ident(word) if is_own(word))) {
                checked(self.krate, assign.right.span(), &mut assign.right);
            }
        }
        self.has_mark_behind = around;
    }
    fn visit_expr_closure_mut(&mut self, _: &mut ExprClosure) {}
}

/// Gives a state's code its kept values.
struct Kept<'a> {
    names: &'a Names,
    live: &'a Set,
}

impl Kept<'_> {
    /// Returns the declaration of a local in this state, if the state needs one.
    fn declaration(&self, statement: Stmt, rest: &[Stmt]) -> Option<Stmt> {
        let name = kept_name(&statement).or_else(|| without_value(&statement)).cloned();
        let Some(name) = name else { return Some(statement) };
        let unique = name.to_string();
        let binding = self.names.binding(&unique)?;
        let mut local = name.clone();
        local.set_span(binding.ident.span());
        if kept_name(&statement).is_some() && self.live.contains(&unique) {
            let value = kept_ident(&unique);
            return Some(parse_quote!(let mut #local = #value;));
        }
        // The state writes the local before the first read, or does not use the local.
        let ty = binding.ty.as_ref().map(|ty| quote!(: #ty));
        is_used(&name, rest).then(|| parse_quote!(let mut #local #ty;))
    }
}

impl VisitMut for Kept<'_> {
    fn visit_block_mut(&mut self, block: &mut Block) {
        let mut stmts = Vec::with_capacity(block.stmts.len());
        let mut rest = std::mem::take(&mut block.stmts);
        while !rest.is_empty() {
            let statement = rest.remove(0);
            stmts.extend(self.declaration(statement, &rest));
        }
        block.stmts = stmts;
        visit_mut::visit_block_mut(self, block);
    }
}

/// Returns the local that a statement declares without a value.
fn without_value(statement: &Stmt) -> Option<&Ident> {
    let Stmt::Local(local) = statement else { return None };
    let pattern = match &local.pat {
        Pat::Type(typed) => &*typed.pat,
        pattern => pattern,
    };
    match pattern {
        Pat::Ident(pattern) if local.init.is_none() => Some(&pattern.ident),
        _ => None,
    }
}

/// Replaces the marks at which a state ends.
struct End<'a> {
    names: &'a Names,
    live: &'a [Set],
    krate: &'a Path,
    has_loops: bool,
}

impl VisitMut for End<'_> {
    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        let Some(mark) = marks::mark(expression) else {
            return visit_mut::visit_expr_mut(self, expression);
        };
        let values = self.live[mark.number].iter().filter_map(|unique| {
            let mut name = format_ident!("{unique}");
            name.set_span(self.names.binding(unique)?.ident.span());
            Some(name)
        });
        let krate = self.krate;
        let kept = quote!(#krate::__private::kept((#(#values,)*)));
        let (fetches, suspend) = (&mark.fetches, suspend(self.has_loops, mark.number, &kept));
        *expression = parse_quote!({ #(#fetches;)* #suspend });
    }
}

/// Refuses locals that the compiler would refuse with words that do not speak of marks.
fn check_kept(names: &Names, codes: &[Block], live: &[Set]) -> Result<()> {
    let mut error = None;
    let all: Set = live.iter().flatten().cloned().collect();
    for binding in all.iter().filter_map(|unique| Some((unique, names.binding(unique)?))) {
        let (unique, binding) = binding;
        let Some(init) = &binding.init else { continue };
        if let Expr::Reference(reference) = init
            && let Expr::Path(target) = &*reference.expr
            && let Some(target) = target.path.get_ident()
            && let Some(local) = names.binding(&target.to_string())
        {
            let message = format!(
                "a reference to the local `{}` cannot be kept across a mark: copy the value, or point into shared data",
                local.ident
            );
            marks::note(&mut error, Error::new_spanned(reference.to_token_stream(), message));
        }
        if let Some(closure) = closure_in(init)
            && declarations(codes, unique) > 1
        {
            let message = "a closure cannot be kept across a mark that is reached in two ways: make it a function, or write the code where it is used";
            marks::note(&mut error, Error::new(closure, message));
        }
    }
    error.map_or(Ok(()), Err)
}

fn closure_in(expression: &Expr) -> Option<Span> {
    struct Closure(Option<Span>);
    impl<'ast> Visit<'ast> for Closure {
        fn visit_expr_closure(&mut self, closure: &'ast ExprClosure) {
            self.0.get_or_insert(closure.inputs_begin.spans[0]);
        }
    }
    let mut closure = Closure(None);
    closure.visit_expr(expression);
    closure.0
}

/// Counts the states that declare a local. Each copy of a closure has a type of its own.
fn declarations(codes: &[Block], unique: &str) -> usize {
    struct Declarations<'a>(&'a str, usize);
    impl<'ast> Visit<'ast> for Declarations<'_> {
        fn visit_stmt(&mut self, statement: &'ast Stmt) {
            if kept_name(statement).is_none() {
                visit::visit_stmt(self, statement);
            }
        }
        fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
            self.1 += usize::from(pattern.ident == *self.0);
            visit::visit_pat_ident(self, pattern);
        }
    }
    let mut declarations = Declarations(unique, 0);
    codes.iter().for_each(|code| declarations.visit_block(code));
    declarations.1
}

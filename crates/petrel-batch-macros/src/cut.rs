//! The copy of code from the front to the first mark on each way through the code.

use std::ops::ControlFlow;

use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprBlock, ExprBreak, ExprIf, ExprMatch, Ident, Label, Local, Stmt};

use crate::marks;
use crate::normal::is_tie;

/// Code, and whether control never reaches the end.
pub(crate) type Copy<T> = (T, bool);

/// Returns the operand that is computed before all others, and has a mark.
pub(crate) fn first_operand(expression: &mut Expr) -> Option<&mut Expr> {
    let operand = match expression {
        Expr::Paren(outer) => &mut outer.expr,
        Expr::Group(outer) => &mut outer.expr,
        Expr::Field(outer) => &mut outer.base,
        Expr::Cast(outer) => &mut outer.expr,
        Expr::Unary(outer) => &mut outer.expr,
        Expr::Reference(outer) => &mut outer.expr,
        Expr::MethodCall(outer) => &mut outer.receiver,
        Expr::Index(outer) => &mut outer.expr,
        Expr::Binary(outer) => &mut outer.left,
        Expr::Let(outer) => &mut outer.expr,
        // The value is computed before the place.
        Expr::Assign(outer) => &mut outer.right,
        Expr::Break(outer) => outer.expr.as_mut()?,
        Expr::Tuple(outer) => outer.elems.first_mut()?,
        Expr::Call(outer) if matches!(&*outer.func, Expr::Path(_)) => {
            let place = usize::from(is_tie(outer));
            outer.args.iter_mut().nth(place)?
        }
        _ => return None,
    };
    marks::in_expr(operand, None).then_some(operand)
}

pub(crate) fn is_lazy(expression: &Expr) -> bool {
    matches!(expression, Expr::Binary(binary) if matches!(binary.op, syn::BinOp::And(_) | syn::BinOp::Or(_)))
}

/// Returns whether code without marks never reaches its end, as far as its text shows.
fn leaves(expression: &Expr) -> bool {
    match expression {
        Expr::Break(_) | Expr::Continue(_) => true,
        Expr::Block(ExprBlock { label: None, block, .. }) => block
            .stmts
            .iter()
            .any(|statement| matches!(statement, Stmt::Expr(expression, _) if leaves(expression))),
        _ => false,
    }
}

/// Returns the copy of a block that is entered from the front.
pub(crate) fn cut_block(block: &Block) -> Copy<Block> {
    let (stmts, ends) = cut_stmts(&block.stmts);
    (Block { brace_token: block.brace_token, stmts }, ends)
}

pub(crate) fn cut_stmts(stmts: &[Stmt]) -> Copy<Vec<Stmt>> {
    let mut copy = Vec::with_capacity(stmts.len());
    for statement in stmts {
        let ends = cut_stmt(statement, &mut copy);
        if ends {
            return (copy, true);
        }
    }
    (copy, false)
}

fn cut_stmt(statement: &Stmt, copy: &mut Vec<Stmt>) -> bool {
    match statement {
        Stmt::Expr(expression, semi) => {
            let (cut, ends) = cut_expr(expression);
            let semi = if ends { Some(Default::default()) } else { *semi };
            copy.push(Stmt::Expr(cut, semi));
            ends
        }
        Stmt::Local(local) => push_local(local, cut_expr, copy),
        // The function's own items stand at the beginning of the batch, where all states see them.
        Stmt::Item(_) | Stmt::Macro(_) => {
            copy.push(statement.clone());
            false
        }
    }
}

/// Appends a `let`, or only the initialiser if control never reaches the initialiser's end.
pub(crate) fn push_local(
    local: &Local,
    init_copy: impl FnOnce(&Expr) -> Copy<Expr>,
    copy: &mut Vec<Stmt>,
) -> bool {
    let mut local = local.clone();
    if let Some(init) = &mut local.init {
        let (value, ends) = init_copy(&init.expr);
        if ends {
            copy.push(Stmt::Expr(value, Some(Default::default())));
            return true;
        }
        *init.expr = value;
        if let Some((_, otherwise)) = &mut init.diverge {
            **otherwise = cut_expr(otherwise).0;
        }
    }
    copy.push(Stmt::Local(local));
    false
}

pub(crate) fn cut_expr(expression: &Expr) -> Copy<Expr> {
    if !marks::in_expr(expression, None) {
        return (expression.clone(), leaves(expression));
    }
    let mut copy = expression.clone();
    let ends = match &mut copy {
        mark if marks::mark(mark).is_some() => true,
        Expr::Block(outer) => {
            let ends = cut_in_place(&mut outer.block);
            ends && !breaks_to(outer.label.as_ref(), &outer.block)
        }
        Expr::Unsafe(outer) => cut_in_place(&mut outer.block),
        Expr::If(choice) => match cut_if(choice) {
            ControlFlow::Continue(ends) => ends,
            ControlFlow::Break(condition) => return (condition, true),
        },
        Expr::Match(choice) => match cut_match(choice) {
            ControlFlow::Continue(ends) => ends,
            ControlFlow::Break(value) => return (value, true),
        },
        Expr::Loop(repeat) => {
            cut_in_place(&mut repeat.body);
            !breaks_to(repeat.label.as_ref(), &repeat.body)
        }
        Expr::While(repeat) => {
            let (condition, ends) = cut_expr(&repeat.cond);
            if ends {
                return (condition, true);
            }
            *repeat.cond = condition;
            cut_in_place(&mut repeat.body);
            false
        }
        outer => {
            let is_break = matches!(outer, Expr::Break(_));
            let is_lazy = is_lazy(outer);
            if let Some(operand) = first_operand(outer) {
                let (value, ends) = cut_expr(operand);
                if ends {
                    return (value, true);
                }
                *operand = value;
            } else if is_lazy && let Expr::Binary(binary) = outer {
                *binary.right = cut_expr(&binary.right).0;
            }
            is_break
        }
    };
    (copy, ends)
}

fn cut_in_place(block: &mut Block) -> bool {
    let (copy, ends) = cut_block(block);
    *block = copy;
    ends
}

/// Cuts a choice. If its condition never reaches its end, the condition alone is the code.
pub(crate) fn cut_if(choice: &mut ExprIf) -> ControlFlow<Expr, bool> {
    let (condition, ends) = cut_expr(&choice.cond);
    if ends {
        return ControlFlow::Break(condition);
    }
    *choice.cond = condition;
    let then_ends = cut_in_place(&mut choice.then_branch);
    let Some((_, otherwise)) = &mut choice.else_branch else { return ControlFlow::Continue(false) };
    let (copy, else_ends) = cut_expr(otherwise);
    **otherwise = copy;
    ControlFlow::Continue(then_ends && else_ends)
}

pub(crate) fn cut_match(choice: &mut ExprMatch) -> ControlFlow<Expr, bool> {
    let (value, ends) = cut_expr(&choice.expr);
    if ends {
        return ControlFlow::Break(value);
    }
    *choice.expr = value;
    let mut all_end = true;
    for arm in &mut choice.arms {
        let (body, ends) = cut_expr(&arm.body);
        *arm.body = body;
        all_end &= ends;
    }
    ControlFlow::Continue(all_end)
}

/// Returns whether a block has a jump to the end of the block or loop with a label.
pub(crate) fn breaks_to(label: Option<&Label>, block: &Block) -> bool {
    struct Breaks<'a>(&'a Ident, bool);
    impl<'ast> Visit<'ast> for Breaks<'_> {
        fn visit_expr_break(&mut self, leave: &'ast ExprBreak) {
            self.1 |= leave.label.as_ref().is_some_and(|label| label.ident == *self.0);
            visit::visit_expr_break(self, leave);
        }
    }
    let Some(label) = label else { return false };
    let mut breaks = Breaks(&label.name.ident, false);
    breaks.visit_block(block);
    breaks.1
}

"""Studies: many trainings that answer a question, and the page that shows what came of them."""

"""An OpenAI-compatible server over the native engine: completions, chat, metrics."""

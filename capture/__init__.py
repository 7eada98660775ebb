"""Records what the gates of real Mixture-of-Experts models see and choose, as traces.

The recording itself needs torch and transformers. Importers, statistics, lint and synthesis read
and write traces without them.
"""

from sim.process.interrupts import end_commands_quietly

end_commands_quietly()

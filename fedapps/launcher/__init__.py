"""The parts of `fedapps.launch`: the SuperLink of a home, processes, inputs and outcomes."""
